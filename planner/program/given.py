"""A program in which the moves are decided: which tensors go to the second memory, when they leave and come back.

To such a program a moved tensor is one that survives the forward pass in every plan, about which there is no decision.
What differs is where it takes memory and where it can be read; both are known::

    made        released              issued   returned        last read
    |------------|  in second memory    |---------|----------------|
     takes memory                        takes memory; to be read
                                                   from here on

So the exact program plans what is kept, what is made again and by which implementations around given moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from monet.planner.problem import Problem
from monet.planner.program.index import Index
from monet.planner.solution import Run, Runs, Stage


@dataclass(frozen=True, slots=True)
class Back:
    """A tensor takes memory again from stage ``issued`` on, and can be read from ``returned`` to ``last``."""

    issued: int
    returned: int
    last: int


@dataclass(frozen=True, slots=True)
class GivenMoves:
    """Of each moved tensor: its bytes, after which forward operator its memory is free, and when it is back.

    ``forward``, ``stages``: the plan whose moves these are.
    """

    bytes: Mapping[str, int]
    released: Mapping[str, int]
    back: Mapping[str, tuple[Back, ...]]
    forward: tuple[Run, ...]
    stages: tuple[Stage, ...]

    def readable(self, name: str, stage: int) -> bool:
        """Whether a stage may read ``name``, as far as moves are concerned."""
        return name not in self.back or any(back.returned <= stage <= back.last for back in self.back[name])

    def spare_forward_bytes(self, i: int) -> int:
        """What the rows of forward operator i count, and is in the second memory."""
        return sum(self.bytes[name] for name, released in self.released.items() if released < i)

    def spare_stage_bytes(self, index: Index, stage: int) -> int:
        """What the rows of a stage count, and is in the second memory."""
        return sum(
            self.bytes[name]
            for name, backs in self.back.items()
            if index.last.get(name, -1) >= stage and not any(back.issued <= stage <= back.last for back in backs)
        )

    def without(self, runs: Runs) -> Runs:
        """The same without its moves."""
        return Runs(
            tuple(replace(run, writes=(), releases=()) for run in runs.forward),
            tuple(replace(stage, issues=(), returns=()) for stage in runs.stages),
        )

    def added_to(self, runs: Runs) -> Runs:
        """The same with these moves."""
        return Runs(
            tuple(
                replace(run, writes=given.writes, releases=given.releases)
                for run, given in zip(runs.forward, self.forward, strict=True)
            ),
            tuple(
                replace(stage, issues=given.issues, returns=given.returns)
                for stage, given in zip(runs.stages, self.stages, strict=True)
            ),
        )


def given_moves(problem: Problem, runs: Runs, reads: list[set[str]]) -> GivenMoves:
    """The moves of a plan. ``reads``: of each stage, what it reads of what is moved."""
    moved = set(runs.moved)
    size = {tensor.id: tensor.bytes for tensor in problem.tensors if tensor.id in moved}
    back: dict[str, list[Back]] = {name: [] for name in size}
    issued: dict[str, int] = {}
    for t, stage in enumerate(runs.stages):
        issued.update(dict.fromkeys(stage.issues, t))
        for name in stage.returns:
            back[name].append(Back(issued[name], t, t))
        for name in reads[t]:
            if back[name]:
                back[name][-1] = replace(back[name][-1], last=t)
    return GivenMoves(
        size,
        {name: i for i, run in enumerate(runs.forward) for name in run.releases},
        {name: tuple(backs) for name, backs in back.items()},
        runs.forward,
        runs.stages,
    )


def with_given(problem: Problem, moves: GivenMoves) -> Problem:
    """The problem in which what is moved is no decision."""
    tensors = tuple(replace(t, pinned=True) if t.id in moves.bytes else t for t in problem.tensors)
    return replace(problem, tensors=tensors, second=None)
