"""What an operator record offers: implementations, as calls on values of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monet.base.graph import Value, references
from monet.ops.kernel_names import call_name


@dataclass(frozen=True, slots=True, order=True)
class Guard:
    """A source that an equation divides by: every ``abs(scale) / max(1, abs(shift))`` must be at least ``least``.

    A result scale * x + shift loses as many digits of x as the shift is larger than the scale. ``shift``: None for 0.
    """

    scale: str
    shift: str | None
    least: float


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator: ``call(*args, **kwargs)``, with ``Ref`` arguments for values.

    ``outputs``: names of the results in order, None for one that nobody reads. ``single``: the call
    returns a tensor and not a tuple. ``overwrites``: the value whose memory becomes the first
    output's. ``exact``: results equal the eager kernel's bit by bit; otherwise ``tolerance`` is the
    relative error that float32 may show, and why is said where the record is defined.
    ``guard``: what must hold of a parameter for the equation; checked before each step. ``holds``: values that eager's
    kernel is given for their shape alone and autograd keeps for it; the call reads none of them, and only a count of
    eager's memory has them. ``eagers``: eager runs this one, and not the first: an assignment to a part of a tensor.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str | None, ...] = ()
    single: bool = True
    overwrites: str | None = None
    exact: bool = True
    tolerance: float = 0.0
    guard: Guard | None = None
    holds: tuple[str, ...] = ()
    eagers: bool = False

    def inputs(self) -> tuple[str, ...]:
        """Values it reads, without repetition, in order."""
        names = [*references(self.args), *references([value for _, value in self.kwargs])]
        return tuple(dict.fromkeys(names))

    @property
    def call_name(self) -> str:
        """Of ``call``: a kernel's own name, or torch's."""
        return call_name(self.call)


@dataclass(frozen=True, slots=True)
class SavedIntermediate:
    """A value made on demand after its operator ran, and how; ``kind`` as in ``planner.problem.Intermediate``."""

    value: Value
    implementation: Implementation
    kind: str
