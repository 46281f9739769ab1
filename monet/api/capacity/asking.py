"""``monet.fit``: asked from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from monet.api.capacity.answer import Answer
from monet.api.capacity.search import FitSearch
from monet.api.capacity.steps import model_steps
from monet.base.amounts import ByteCount, parse_memory
from monet.capture import autocast
from monet.capture.captured import device_type
from monet.capture.input_geometry import call_of
from monet.errors import ConfigError
from monet.executor.module import require_unplanned
from monet.ops.estimating.machines import machine_named
from monet.ops.estimating.rates import Rates, parse_rates
from monet.ops.offers.offering import Offering
from monet.pipeline.calibration import calibrated_rates
from monet.pipeline.meter import on_stderr, silent
from monet.pipeline.preparation import Preparing
from monet.planner.search import Solving

TIME_LIMIT_S = 20.0
"""Of each of the solves, of which there are about ten."""


def fit(
    model: torch.nn.Module,
    args: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: str | int | None = None,
    estimate: bool = False,
    rates: str | None = None,
    on: str | None = None,
    batch: bool = True,
    exact: bool = False,
    accumulate: bool = False,
    gradients: Literal["freed", "kept"] = "freed",
    reserve_bytes: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    gap: float = 0.01,
    window: int | None = None,
    solver: str = "HIGHS",
    cache: bool = True,
    progress: bool = False,
) -> Answer:
    """Whether a training step of ``model`` on inputs shaped like ``args`` and ``kwargs`` (as for ``monet.plan``) fits
    into ``memory``, as ``"16GB"`` or a number of bytes; with what overhead, in how much less, and up to which batch
    (``batch``: False leaves that out; inputs need a first dimension in common). The model is not changed.

    ``estimate``: no operator of the model is run. Its costs are estimated from their shapes and from rates of this
    machine, which small models have once been measured for, or from ``rates``, as ``"300GFLOPS,20GB/s"``. The model may
    then be on the meta device, or of fake tensors, and larger than this machine. Plans of estimates cannot be run.
    ``on``: the same for a machine that is not here, by the figures of its maker: ``"h100"``, ``"rtx 4090"``, or a
    number of cores, as ``"32-core"``. ``memory`` may then be left out for a GPU: all that it has.
    ``time_limit_s``: of each solve, of which there are about ten. Other options as for ``monet.plan``.

    Ctrl-C gives what is known by then, with ``status`` ``"interrupted"``. Raises ``monet.MonetError``s as
    ``monet.plan``, but no ``InfeasibleBudget``: that is an answer.
    """
    require_unplanned(model)
    args, kwargs = call_of(args, kwargs)
    asked = None if memory is None else parse_memory(memory)
    dtype = _dtype(model, (args, kwargs))
    room, given = room_and_rates(asked, on, rates, dtype, estimate=estimate, cache=cache, progress=progress)
    preparing = Preparing(reserve_bytes, accumulate, cache, gradients=gradients, costs=given)
    steps = model_steps(model, args, kwargs, preparing, Offering(exact), progress=progress)
    solving = Solving(time_limit_s, gap, window, solver)
    return FitSearch(steps, room, solving, on_stderr if progress else silent).run(batch=batch)


def room_and_rates(
    memory: ByteCount | None,
    on: str | None,
    rates: str | None,
    dtype: torch.dtype,
    *,
    estimate: bool,
    cache: bool,
    progress: bool,
) -> tuple[ByteCount, Rates | None]:
    """The memory that is asked about, or all of the machine that ``on`` names; and by which rates costs are estimated:
    that machine's, ``rates``, or this one's where there is to be an estimate; None: they are measured.

    Raises ``ConfigError`` where these contradict each other, or the memory is not known.
    """
    if on is not None and rates is not None:
        raise ConfigError(f"rates are given and those of {on!r} are asked for: leave one of the two out")
    if rates is not None and not estimate:
        raise ConfigError("rates are for estimates: say estimate=True, too")
    machine = None if on is None else machine_named(on)
    if memory is None and machine is not None and machine.memory_gb is not None:
        memory = ByteCount(machine.memory_gb * 10**9, "GB")
    if memory is None:
        raise ConfigError("how much memory is there? Give it, as 16GB; or name a GPU whose memory is known, as h100")
    if machine is not None:
        return memory, machine.rates(dtype)
    if rates is not None:
        return memory, parse_rates(rates)
    return memory, calibrated_rates(dtype, cache=cache, progress=progress) if estimate else None


def _dtype(model: torch.nn.Module, inputs: Any) -> torch.dtype:
    """That most of the model's operators compute in: autocast's, else its first parameter's."""
    state = autocast.state(device_type(model, inputs))
    if state is not None:
        found = getattr(torch, state["dtype"])
        assert isinstance(found, torch.dtype)
        return found
    return next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)
