"""What a sweep is about: its source and options, the step that is planned, cells and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Step:
    """The step that is planned, as PyTorch runs it: everything kept, default implementations.

    ``problem``: SHA-256 of the planner's problem, costs included. ``memory_bytes``: what is in memory at every
    run of an operator, the first ``forward_moments`` of them in the forward pass.
    """

    name: str
    problem: str
    baseline_s: float
    baseline_peak_bytes: int
    fixed_bytes: int
    memory_bytes: tuple[int, ...]
    forward_moments: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant (as labelled in a sweep) under one budget."""

    variant: str
    budget_bytes: int

    def __str__(self) -> str:
        return f"{self.variant} at {self.budget_bytes} bytes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell. ``problem``: of the step that it was planned for (``Step.problem``).

    ``status``: a solution's, or ``infeasible`` (no plan fits, or none was found in time; ``smallest_bytes``: the
    smallest budget known to work), or ``error``; the last two have a ``message``. ``bound_s``, ``gap`` and
    ``bound_scope`` are None where nothing was proven. ``to_gap_s``: gap in percent → seconds until it was reached.
    ``arena_bytes``: None for a profile, which has no lifetimes of buffers to lay out. ``made_on``: processor and
    versions. Of a variant that moves, else None: ``moved_bytes`` are in the second memory, ``copied_bytes`` are copied
    in a step, which waits ``waited_s`` for them, and of what operators read and make a share ``fast_operands`` is in
    the fast memory.
    """

    status: str
    problem: str
    message: str | None = None
    smallest_bytes: int | None = None
    objective_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    bound_scope: str | None = None
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    build_s: float | None = None
    solve_s: float | None = None
    to_gap_s: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: tuple[int, ...] = ()
    forward_moments: int = 0
    made_on: Mapping[str, Any] = field(default_factory=dict)
    moved_bytes: int | None = None
    copied_bytes: int | None = None
    waited_s: float | None = None
    fast_operands: float | None = None

    @property
    def planned(self) -> bool:
        return self.objective_s is not None


def step_content(step: Step) -> dict[str, Any]:
    return asdict(step)


def step_of(content: Mapping[str, Any]) -> Step:
    """Raises ``TypeError`` where fields are missing or unknown."""
    _same_fields(Step, content)
    return Step(**{**content, "memory_bytes": tuple(content["memory_bytes"])})


def outcome_content(outcome: Outcome) -> dict[str, Any]:
    content = asdict(outcome)
    content["to_gap_s"] = {str(percent): seconds for percent, seconds in outcome.to_gap_s.items()}
    return content


def outcome_of(content: Mapping[str, Any]) -> Outcome:
    """Raises ``TypeError`` where fields are missing or unknown."""
    _same_fields(Outcome, content)
    return Outcome(
        **{
            **content,
            "to_gap_s": {int(percent): seconds for percent, seconds in content["to_gap_s"].items()},
            "memory_bytes": tuple(content["memory_bytes"]),
        }
    )


def _same_fields(kind: type[Any], content: Mapping[str, Any]) -> None:
    if set(content) != {f.name for f in fields(kind)}:
        raise TypeError(f"not the fields of {kind.__name__}")
