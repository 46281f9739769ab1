"""Measures what a catalogue offers, each signature once, through the cache on disk."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import quantiles

import torch
from tqdm import tqdm

from monet.base.graph import Value
from monet.base.measurement import Measurement
from monet.base.progress_line import SHARE_FORMAT, is_shown
from monet.errors import ProfileError
from monet.ops.catalogue import Catalogue
from monet.ops.fusion.compiling_ahead import compile_all
from monet.ops.fusion.offers import kernels
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.busy_machine import PERIOD_S, WINDOW_S, OtherPrograms
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.signature import between_bytes, environment, kept_under, signature
from monet.ops.offers.generic import draw
from monet.ops.offers.implementation import Implementation

logger = logging.getLogger(__name__)

DISTURBED = 4.0
"""What was measured while the reference took so many times as long as usual is measured again. On a quiet machine it
takes up to three times as long after one operator as after another; a thread that had to wait for its core, 20 times.
"""
MOST_AGAIN = 0.25
"""Of all, the most disturbed first: more is no disturbance, but how the machine is."""

ESTIMATED = "estimated by "
"""What the environment of an estimated profile begins with: that of no machine, so no plan of it can be run."""


@dataclass(frozen=True)
class Profile:
    """Measurements by signature, of one environment. ``measured``: how many of them were made for it."""

    environment: str
    measurements: Mapping[str, Measurement]
    measured: int

    @property
    def estimated(self) -> bool:
        """Whether nothing was run: see ``monet.ops.estimating``."""
        return self.environment.startswith(ESTIMATED)

    def of(self, implementation: Implementation, catalogue: Catalogue) -> Measurement:
        return self.measurements[signature(implementation, catalogue.values)]

    def joined(self, other: Profile) -> Profile:
        """Of the same environment, with the measurements of both."""
        return Profile(self.environment, {**self.measurements, **other.measurements}, self.measured + other.measured)

    def restricted(self, catalogue: Catalogue) -> Profile:
        """The same with nothing but what ``catalogue`` offers.

        Raises ``ProfileError`` where it offers something that was not measured: then it is of another step, or of an
        installation that has other kernels.
        """
        wanted = {signature(run, catalogue.values) for run in implementations(catalogue)}
        missing = sorted(wanted - self.measurements.keys())
        if missing:
            raise ProfileError(
                f"{len(missing)} of {len(wanted)} implementations have no measurement, the first is {missing[0]}: the "
                "costs are of another model, or of an installation with other kernels"
            )
        return Profile(self.environment, {key: self.measurements[key] for key in sorted(wanted)}, 0)


def implementations(catalogue: Catalogue) -> Iterator[Implementation]:
    """All that a catalogue offers, of every pass, and what makes intermediates."""
    for group in (catalogue.forward, catalogue.recompute, catalogue.backward):
        for named in group.values():
            yield from named.values()
    for saved in catalogue.intermediates.values():
        for intermediate in saved:
            yield intermediate.implementation


def unmeasured(catalogue: Catalogue, cache: ProfileCache | None) -> list[str]:
    """Signatures of what was never measured here."""
    kept_at = kept_under(catalogue.graph)
    wanted = {signature(run, catalogue.values) for run in implementations(catalogue)}
    if cache is None:
        return sorted(wanted)
    return sorted(
        key for key in wanted if all(cache.get(f"{kept_at}|{key}", busy=busy) is None for busy in (False, True))
    )


def profile(
    catalogue: Catalogue,
    *,
    cache: ProfileCache | None = None,
    progress: bool = False,
    given: Mapping[str, Measurement] | None = None,
) -> Profile:
    """Measure every implementation that the cache does not know. ``measured`` counts what was run; ``given``: what is
    known otherwise, by signature.

    Results are stored about once a second, and where the run is interrupted, so that the next one goes on there. What
    was measured while other programs kept the machine busy is marked, and measured again by the first run that finds it
    quiet. What something disturbed that no counter tells (a neighbour on the same processor) is measured again at once:
    see ``Bench.reference_s``.
    """
    where, kept_at = environment(catalogue.graph.device), kept_under(catalogue.graph)
    wanted = {signature(i, catalogue.values): i for i in implementations(catalogue)}
    known = dict(given or {})
    marked: dict[str, Measurement] = {}
    if cache is not None:
        known |= {key: found for key in wanted if (found := cache.get(f"{kept_at}|{key}")) is not None}
        marked = {
            key: found
            for key in wanted
            if key not in known and (found := cache.get(f"{kept_at}|{key}", busy=True)) is not None
        }
    others = OtherPrograms(torch.get_num_threads())
    if marked:
        time.sleep(PERIOD_S)
        if others.took_cores():
            known |= marked
            _warn(others, len(marked), len(wanted), cache)
    missing = {key: i for key, i in wanted.items() if key not in known}
    compile_all((k for i in missing.values() for k in kernels(i, catalogue.values)), progress=progress)
    others.took_cores()  # the compiler's work is not beside a measurement
    bench = Bench(between_bytes(catalogue.graph), catalogue.graph.device)
    values = dict(catalogue.values)
    for key, found in known.items():
        _note_elsewhere(wanted[key], found, values)
    # What draws comes first: it shows which results are on the CPU, for the operators that read them. Then the biggest
    # tensors: memory is made resident once, and the estimate of what is left is safe.
    order = sorted(missing, key=lambda k: (missing[k].call is not draw, -_bytes(missing[k], catalogue), k))
    weights = {key: _bytes(missing[key], catalogue) + (1 << 16) for key in order}
    store = _Store(kept_at, cache, others)
    references: dict[str, float] = {}

    def measure(key: str) -> None:
        with torch.no_grad():
            found = bench.measure(missing[key], values)
        if bench.reference_s <= references.get(key, math.inf):
            known[key], references[key] = found, bench.reference_s
            store.add(key, found)

    with tqdm(
        total=sum(weights.values()), desc="measuring operators", disable=not missing or not is_shown(progress),
        bar_format=SHARE_FORMAT,
    ) as bar:  # fmt: skip
        try:
            for key in order:
                measure(key)
                _note_elsewhere(missing[key], known[key], values)
                bar.update(weights[key])
            for key in disturbed(references):
                measure(key)
        finally:
            store.flush()
    if store.marked:
        _warn(others, len(store.marked), len(wanted), cache)
    return Profile(where, known, len(missing))


def disturbed(references: Mapping[str, float]) -> list[str]:
    """Whose reference, in seconds, took longer than usual (the fastest quarter's longest), the longest first; 0 is
    none."""
    known = {key: seconds for key, seconds in references.items() if seconds > 0}
    if len(known) < 2:
        return []
    usual_s = quantiles(known.values(), n=4, method="inclusive")[0]
    found = sorted((key for key, s in known.items() if s > DISTURBED * usual_s), key=lambda key: -known[key])
    return found[: int(MOST_AGAIN * len(known))]


def _note_elsewhere(run: Implementation, measured: Measurement, values: dict[str, Value]) -> None:
    """Of results that are in no memory of the step's device, ``values`` gets the device that they are on: the CPU.

    Tracing puts all results of an operator on the device of its inputs. The seeds of a GPU's attention are not there.
    """
    asked = {request.output for request in measured.requests}
    for position, name in enumerate(run.outputs):
        overwritten = run.overwrites is not None and position == 0
        if name is not None and position not in asked and not overwritten and values[name].storage_bytes:
            values[name] = replace(values[name], device=torch.device("cpu"))


class _Store:
    """Measurements on their way to the cache: a window's, which are marked where others were at work in it."""

    def __init__(self, where: str, cache: ProfileCache | None, others: OtherPrograms) -> None:
        self._where, self._cache, self._others = where, cache, others
        self._waiting: list[tuple[str, Measurement]] = []
        self.marked: set[str] = set()

    def add(self, key: str, measurement: Measurement) -> None:
        self._waiting.append((f"{self._where}|{key}", measurement))
        if self._others.window_s >= WINDOW_S:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        busy = self._others.took_cores()
        keys = {key for key, _ in self._waiting}
        self.marked = self.marked | keys if busy else self.marked - keys
        if self._cache is not None:
            self._cache.put(self._waiting, busy=busy)
        self._waiting = []


def _warn(others: OtherPrograms, marked: int, wanted: int, cache: ProfileCache | None) -> None:
    logger.warning(
        "other programs kept %.1f cores busy while %d of %d operators were measured: their times are too long, those "
        "of small operators by far%s",
        others.busy,
        marked,
        wanted,
        "; they are measured again when the machine is quiet" if cache is not None else "",
    )


def _bytes(implementation: Implementation, catalogue: Catalogue) -> int:
    names = [*implementation.inputs(), *(n for n in implementation.outputs if n is not None)]
    return sum(catalogue.values[name].storage_bytes for name in names)
