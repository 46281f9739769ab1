"""Rates of this machine, from the kernels of small models, measured once and kept with all measurements."""

from __future__ import annotations

from functools import partial

import torch

from monet.capture import capture_once
from monet.models.probes import probes
from monet.ops.catalogue import catalogue
from monet.ops.estimating.rates import Rates
from monet.ops.estimating.work import Work, work
from monet.ops.measuring.profiling import implementations
from monet.pipeline.preparation import measured_costs


def calibrated_rates(dtype: torch.dtype = torch.float32, *, cache: bool = True, progress: bool = False) -> Rates:
    """How fast kernels on tensors of ``dtype`` are here, with the threads that torch has now. They are measured in
    bfloat16 for that, and in float32 for anything else, which every kernel of the CPU takes.

    The first call measures, in a minute or so; with ``cache`` later ones find all of it, as long as machine, PyTorch
    and threads are the same. ``progress``: show the measuring on stderr. Raises ``ProfileError``.
    """
    dtype = dtype if dtype is torch.bfloat16 else torch.float32
    found: list[tuple[Work, float]] = []
    convert = partial(torch.Tensor.to, dtype=dtype)
    with torch.autocast("cpu", enabled=False):
        for model, inputs in probes():
            given = [convert(x) if x.is_floating_point() else x for x in inputs]
            captured = capture_once(model.to(dtype).train(), given, on_disk=cache)
            offers = catalogue(captured.graph)
            costs = measured_costs(offers, cache=cache, progress=progress)
            for run in implementations(offers):
                found.append((work(run, offers.values), costs.of(run, offers).time_s))
    return Rates.measured(found)
