"""``monet.fit``: asked from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from monet.api.capacity.answer import Answer
from monet.api.capacity.search import FitSearch
from monet.api.capacity.steps import model_steps
from monet.base.amounts import parse_memory
from monet.capture import autocast
from monet.capture.captured import device_type
from monet.capture.input_geometry import call_of
from monet.errors import ConfigError
from monet.executor.module import require_unplanned
from monet.ops.estimating.rates import parse_rates
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
    memory: str | int,
    estimate: bool = False,
    rates: str | None = None,
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
    ``time_limit_s``: of each solve, of which there are about ten. Other options as for ``monet.plan``.

    Ctrl-C gives what is known by then, with ``status`` ``"interrupted"``. Raises ``monet.MonetError``s as
    ``monet.plan``, but no ``InfeasibleBudget``: that is an answer.
    """
    require_unplanned(model)
    args, kwargs = call_of(args, kwargs)
    room = parse_memory(memory)
    if rates is not None and not estimate:
        raise ConfigError("rates are for estimates: say estimate=True, too")
    given = None if rates is None else parse_rates(rates)
    if estimate and given is None:
        given = calibrated_rates(_dtype(model, (args, kwargs)), cache=cache, progress=progress)
    preparing = Preparing(reserve_bytes, accumulate, cache, gradients=gradients, costs=given)
    steps = model_steps(model, args, kwargs, preparing, Offering(exact), progress=progress)
    solving = Solving(time_limit_s, gap, window, solver)
    return FitSearch(steps, room, solving, on_stderr if progress else silent).run(batch=batch)


def _dtype(model: torch.nn.Module, inputs: Any) -> torch.dtype:
    """That most of the model's operators compute in: autocast's, else its first parameter's."""
    state = autocast.state(device_type(model, inputs))
    if state is not None:
        found = getattr(torch, state["dtype"])
        assert isinstance(found, torch.dtype)
        return found
    return next((p.dtype for p in model.parameters() if p.dtype.is_floating_point), torch.float32)
