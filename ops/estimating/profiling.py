"""A profile of a catalogue that is not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from monet.base.measurement import Measurement
from monet.errors import ProfileError
from monet.ops.catalogue import Catalogue
from monet.ops.estimating.rates import Rates
from monet.ops.estimating.temporaries import gpu_requests, requests
from monet.ops.estimating.work import work
from monet.ops.measuring.profiling import ESTIMATED, Profile, implementations
from monet.ops.measuring.signature import environment, signature


def estimated_profile(catalogue: Catalogue, rates: Rates) -> Profile:
    """What every implementation would cost: results by their shapes, temporaries as such kernels have them, seconds by
    ``rates``. Its environment says so: a plan of it is refused where a plan is run.

    Raises ``ProfileError`` for a step on another device than the CPU, whose kernels are not known here.
    """
    device = catalogue.graph.device
    if device.type != "cpu":
        raise ProfileError(f"costs are estimated for the CPU, and the model is on {device}: leave estimate out")
    found: dict[str, Measurement] = {}
    with _threads(rates.threads):
        for run in implementations(catalogue):
            key = signature(run, catalogue.values)
            if key not in found:
                asked = (gpu_requests if rates.gpu else requests)(run, catalogue.values)
                ticks = max((max(r.begin + 1, r.end or 0) for r in asked), default=1)
                found[key] = Measurement(rates.seconds(work(run, catalogue.values)), asked, ticks)
    return Profile(f"{ESTIMATED}{rates.origin}|{environment(device)}", found, 0)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads of torch's, for what asks it how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
