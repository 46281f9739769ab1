"""Measures what a catalogue offers, each signature once, through the cache on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from tqdm import tqdm

from monet.measurement import Measurement
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.busy_machine import warn_if_busy
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.signature import environment, signature
from monet.ops.offers.implementation import Implementation


@dataclass(frozen=True)
class Profile:
    """Measurements by signature, of one environment."""

    environment: str
    measurements: Mapping[str, Measurement]
    measured: int

    def of(self, implementation: Implementation, catalogue: Catalogue) -> Measurement:
        return self.measurements[signature(implementation, catalogue.values)]


def implementations(catalogue: Catalogue) -> Iterator[Implementation]:
    """All that a catalogue offers, of every pass, and what makes intermediates."""
    for group in (catalogue.forward, catalogue.recompute, catalogue.backward):
        for named in group.values():
            yield from named.values()
    for saved in catalogue.intermediates.values():
        for intermediate in saved:
            yield intermediate.implementation


def profile(catalogue: Catalogue, *, cache: ProfileCache | None = None, progress: bool = False) -> Profile:
    """Measure every implementation that the cache does not know; each result is stored at once, so an
    interrupted run goes on where it stopped. ``measured`` counts what was run."""
    device = catalogue.graph.device
    where = environment(device)
    wanted = {signature(i, catalogue.values): i for i in implementations(catalogue)}
    known: dict[str, Measurement] = {}
    if cache is not None:
        known = {key: found for key in wanted if (found := cache.get(f"{where}|{key}")) is not None}
    missing = {key: i for key, i in wanted.items() if key not in known}
    if missing:
        warn_if_busy(torch.get_num_threads(), None if cache is None else cache.path)
    bench = Bench()
    # Biggest tensors first: memory is made resident once, and the estimate of what is left is safe.
    order = sorted(missing, key=lambda k: (-_bytes(missing[k], catalogue), k))
    weights = {key: _bytes(missing[key], catalogue) + (1 << 16) for key in order}
    with tqdm(
        total=sum(weights.values()), desc="measuring operators", disable=not progress or not missing,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}",
    ) as bar:  # fmt: skip
        for key in order:
            with torch.no_grad():
                known[key] = bench.measure(missing[key], catalogue.values)
            if cache is not None:
                cache.put([(f"{where}|{key}", known[key])])
            bar.update(weights[key])
    return Profile(where, known, len(missing))


def _bytes(implementation: Implementation, catalogue: Catalogue) -> int:
    names = [*implementation.inputs(), *(n for n in implementation.outputs if n is not None)]
    return sum(catalogue.values[name].storage_bytes for name in names)
