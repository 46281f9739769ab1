"""The columns of the checkpoint program, and when its checkpoints are; ``program.py`` says what they mean."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from monet.planner.problem import StateTensor
from monet.planner.program.index import Index
from monet.planner.solvers.rows import ABSENT, Presence, Rows

TURNAROUND = -1
"""The stage before the first: the checkpoint between the forward and the backward pass."""


Checkpoint = tuple[bool, int]
"""(whether it is in the backward pass, the operator's position); the turnaround is (True, ``TURNAROUND``). In order of
time."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When memory is counted, besides at the turnaround: during backward operators and during forward operators, by
    their positions, ascending."""

    stages: tuple[int, ...] = ()
    forward: tuple[int, ...] = ()


@dataclass(slots=True)
class CheckpointProgram:
    """Columns and rows; see the module for what the columns mean.

    ``base_s``: seconds of what is no decision; the objective of a point is ``base_s`` + cost · x. ``memory``: the rows
    that count memory, each with its checkpoint. ``waiting_forward``, ``waiting_backward``: the columns of waiting for
    copies, by segment (``copies.py``). ``state``: tensors that may be carried, each by a column of ``carried``,
    with one of ``there``, and one of ``stays`` for each use after which it may stay (``carried_state.py``).
    """

    index: Index
    budget_bytes: int
    checkpoints: Checkpoints
    state: tuple[StateTensor, ...] = ()
    rows: Rows = field(default_factory=Rows)
    held: dict[tuple[str, int], int] = field(default_factory=dict)
    run: dict[tuple[int, int], int] = field(default_factory=dict)
    make: dict[tuple[str, int], int] = field(default_factory=dict)
    after: dict[tuple[int, int], int] = field(default_factory=dict)
    made: dict[tuple[str, int], int] = field(default_factory=dict)
    forward: dict[tuple[int, str], int] = field(default_factory=dict)
    backward: dict[tuple[int, str], int] = field(default_factory=dict)
    base_s: float = 0.0
    memory: dict[int, Checkpoint] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    carried: dict[str, int] = field(default_factory=dict)
    stays: dict[tuple[str, Checkpoint], int] = field(default_factory=dict)
    there: dict[str, int] = field(default_factory=dict)
    waiting_forward: list[int] = field(default_factory=list)
    waiting_backward: list[int] = field(default_factory=list)

    @property
    def waiting(self) -> list[int]:
        """All columns of waiting."""
        return self.waiting_forward + self.waiting_backward

    @property
    def at(self) -> tuple[int, ...]:
        """The checkpoints as stages, the turnaround first."""
        return (TURNAROUND, *self.checkpoints.stages)

    def segment(self, stage: int) -> int:
        """The segment of a stage, from 1."""
        return bisect_left(self.at, stage)

    def holds(self, name: str, checkpoint: int) -> Presence:
        """``name`` is in memory at a checkpoint, by its number."""
        column = self.held.get((name, checkpoint))
        return ABSENT if column is None else (column,)

    def away(self, name: str) -> Presence:
        """``name`` is in the second memory at the turnaround."""
        column = self.gone.get(name)
        return ABSENT if column is None else (column,)

    def readers(self, stage: int, name: str) -> Presence | None:
        """The implementations of a stage that read ``name``; None where all of them do."""
        runs = self.index.runs_backward[stage]
        reading = [q for q in runs if name in q.reads]
        return None if len(reading) == len(runs) else tuple(self.backward[stage, q.name] for q in reading)
