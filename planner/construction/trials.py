"""Choices of a walk, each tried on it and undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from monet.planner.construction.reruns import NEVER
from monet.planner.construction.walk import Changes, Walk
from monet.planner.problem import ForwardImplementation, Intermediate
from monet.planner.solution import Stage

Choice = TypeVar("Choice", ForwardImplementation, Stage)


# These small values are not frozen: a search tries tens of thousands of runs, and freezing makes it a tenth slower.
@dataclass(slots=True)
class Trial(Generic[Choice]):
    """``choice`` was tried, and ``changes`` are what it did to the walk.

    ``own_s``: the choice's own seconds. ``lost_s``: those that dropping tensors for it will cost later.
    """

    choice: Choice
    changes: Changes
    own_s: float
    lost_s: float = 0.0

    def order(self) -> tuple[float, float]:
        """What a walk minimises: time, then memory; a thrifty one the other way round."""
        peak = float(self.changes.peak_bytes)
        return (peak, self.own_s) if self.changes.thrifty else (self.own_s + self.lost_s, peak)


def best_trial(trials: Callable[[bool], Iterator[Trial[Choice]]]) -> Trial[Choice] | None:
    """The best trial; where none fits, the first that does if everything is dropped that may be; None where none does.

    ``trials``: given whether to be thrifty, tries one choice after the other.
    """
    return min(trials(False), key=Trial.order, default=None) or next(trials(True), None)


@dataclass(slots=True)
class Moment:
    """A forward operator is to run: ``stage`` is 0 in the forward pass.

    ``base_bytes``: in memory besides what is present: what is fixed, gradients, and its outputs. ``locked``: what may
    not be dropped for it. ``outputs``: what it adds to what is present.
    """

    stage: int
    base_bytes: int
    locked: Set[str]
    outputs: Sequence[str]


def run_trial(
    walk: Walk, moment: Moment, q: ForwardImplementation, own_s: float, workspace_bytes: int, *, thrifty: bool
) -> Trial[ForwardImplementation] | None:
    """A run by ``q``; None where it does not fit or destroys what the walk cannot do without."""
    before = walk.begin(thrifty)
    lost_s = walk.make_room(moment.base_bytes + workspace_bytes - q.aliased_bytes, moment.locked, moment.stage)
    if lost_s < NEVER:
        walk.take(moment.outputs)
        if q.overwrites is not None:
            lost_s += walk.without(q.overwrites, moment.stage)
            walk.drop((q.overwrites,))
    changes = walk.undo(before)
    return Trial(q, changes, own_s, lost_s) if lost_s < NEVER else None


def make_intermediate(walk: Walk, v: Intermediate, base_bytes: int, locked: Set[str], stage: int) -> float:
    """Makes an intermediate; the seconds of that, those lost included, ``NEVER`` where it does not fit.
    ``base_bytes``: what is fixed, and gradients."""
    seconds = v.time_s + walk.make_room(base_bytes + v.bytes + v.workspace_bytes, locked, stage)
    walk.take((v.id,))
    return seconds


def making_reads(made: list[Intermediate]) -> set[str]:
    """What making the intermediates reads."""
    return {name for v in made for name in v.reads}
