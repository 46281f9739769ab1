"""A capture in which the parts that cannot be traced are islands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from monet.base.sizes import Ranges
from monet.capture.captured import Captured
from monet.capture.guards.model_reads import model_reads
from monet.capture.islands.finding import HAS_RECURRENT_LAYERS, ONE_KERNEL, modules_to_leave
from monet.capture.islands.state import situation
from monet.capture.varying_inputs import NOT_FOR_A_RANGE
from monet.errors import CaptureError, ExecutionError

if TYPE_CHECKING:
    from monet.capture.islands.trial import Islands

logger = logging.getLogger(__name__)

# By model, what was found out with inputs of a user: later ones may be made up, and say less.
_tried: WeakKeyDictionary[torch.nn.Module, list[tuple[Any, Islands]]] = WeakKeyDictionary()

_BEFORE_TRACING = (ONE_KERNEL, HAS_RECURRENT_LAYERS)

_MOST_ROUNDS = 8
"""Each finds the parts of one class, and takes another trace."""


def any_part(module: torch.nn.Module) -> bool:
    return True


def with_islands(
    model: torch.nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    trace: Callable[[], Captured],
    ranges: Ranges | None = None,
    may_be: Callable[[torch.nn.Module], bool] = any_part,
) -> Captured:
    """``trace()``, where that fails by some parts of the model with islands in their places.

    ``inputs``: real ones, of the largest shape of ``ranges``. ``may_be``: which parts may become islands. Raises the
    ``CaptureError`` of the first trace where that does not help.
    """
    try:
        return trace()
    except CaptureError as error:
        refusal = latest = error
    now = situation(model, *inputs, ranges)
    for then, known in _tried.get(model, []):
        if then == now and all(map(may_be, known.modules)):
            return _traced(model, known, trace)
    left: list[torch.nn.Module] = []
    for _ in range(_MOST_ROUNDS):
        more = modules_to_leave(model, inputs, latest, left)
        if not more or not all(map(may_be, more)):
            break
        left += more
        try:
            captured = _left_out(model, left, inputs, trace, ranges)
        except CaptureError as error:
            logger.info("%s", error)
            # Of a layer that is left out before anything is traced, the first refusal says nothing of the rest; and why
            # a part cannot be left out is what to know of one that can be traced for one shape.
            refusal = error if any(text in str(refusal) for text in _BEFORE_TRACING) or ranges else refusal
            latest = error
            continue
        _say(model, captured, refusal)
        return captured
    raise refusal


def _left_out(
    model: torch.nn.Module,
    left: Sequence[torch.nn.Module],
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    trace: Callable[[], Captured],
    ranges: Ranges | None,
) -> Captured:
    # What it imports registers operators with torch: only where there are islands.
    from monet.capture.islands.trial import Islands

    try:
        islands = Islands(model, left, *inputs, ranges)
    except Exception as error:  # whatever the model raises
        where = "" if ranges is None else f"{NOT_FOR_A_RANGE}: "
        raise CaptureError(f"{where}a part cannot be traced, and cannot be left out: {error}") from error
    captured = _traced(model, islands, trace)
    _tried.setdefault(model, []).append((situation(model, *inputs, ranges), islands))
    return captured


def _traced(model: torch.nn.Module, islands: Islands, trace: Callable[[], Captured]) -> Captured:
    with islands.in_trace(), torch.enable_grad():  # a trace that fails in its backward pass may leave it off
        captured = trace()
    assigned = [write.key for write in captured.writes if write.expected is None]
    for module in islands.modules if assigned else ():
        reads = model_reads(module)
        early = next((key for key in assigned if reads.is_read(key)), None)
        if early is not None:
            raise CaptureError(
                f"a {type(module).__name__} may read {early}, which the forward pass assigns, and which is assigned "
                "when a planned one has ended: return it, and pass it on"
            )
    try:
        islands.measure(model, captured.graph)
    except (RuntimeError, ExecutionError) as error:
        raise CaptureError(f"the part cannot run as it is: {error}") from error
    return replace(captured, islands=islands.by_key)


def _say(model: torch.nn.Module, captured: Captured, refusal: CaptureError) -> None:
    names = list(dict.fromkeys(island.name for island in captured.islands.values()))
    logger.warning(
        "%s of %s (%d in all) runs as it is inside of the plan, which counts %d bytes for it beside the arena, as "
        "measured on these inputs: it cannot be planned (%s)",
        names[0], type(model).__name__, len(names), captured.island_bytes, str(refusal).splitlines()[0],
    )  # fmt: skip
