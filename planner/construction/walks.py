"""Walk through a training step with a set of tensors in memory, dropping and recomputing on the way.

Whenever the next run does not fit, what is cheapest to do without, per byte, is dropped; whenever a
read is missing, what it needs is run again. Dynamic Tensor Rematerialization (Kirisame et al., ICLR
2021) evicts in the same way, but while training and blind to the future; here the next use of every
tensor is known. A *thrifty* walk drops everything at once and takes the leanest implementations.

Every choice is tried on a copy of the walk, and the walk goes on from the best copy.

The walk counts a tensor until it is dropped, replay until its last read: replay never finds more.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from monet.planner.construction.reruns import NEVER, rerun_seconds, reruns, stage_seconds, uses
from monet.planner.problem import BackwardImplementation, ForwardImplementation, Intermediate, recompute_cost
from monet.planner.program.windows import Windows
from monet.planner.solution import Run, Stage

MOST_AGAIN = 50_000
"""Recomputations in a plan. One that drops everything makes them by the square of the number of operators; more than
this take minutes to order, and a step many times eager's."""


class DoesNotFit(Exception):
    """This way of running a step exceeds the budget whatever is dropped, takes longer to find than there is time, or
    runs more than ``MOST_AGAIN`` operators again."""


@dataclass(slots=True)
class Walk:
    """Memory while the plan is being made.

    ``present``: tensors in memory, ``present_bytes`` of them. ``peak_bytes``: the most so far, fixed bytes included.
    ``thrifty``: drops all that it may at every moment, and prefers the least peak to the least time.
    ``chosen``: never dropped while needed; its intermediates are made in the forward pass. ``deadline_s``: on
    ``time.monotonic``; a walk that drops everything runs a chain of n operators n²/2 times, and unrolled networks
    are long chains. ``score``: seconds lost per byte by doing without a tensor, as last computed.
    """

    index: Windows
    budget_bytes: int
    thrifty: bool
    chosen: frozenset[str] = frozenset()
    deadline_s: float = math.inf
    present: set[str] = field(default_factory=set)
    present_bytes: int = 0
    peak_bytes: int = 0
    score: dict[str, float] = field(default_factory=dict)

    def copy(self, thrifty: bool) -> Walk:
        """For a trial: its own memory, and its own peak from here on; scores are shared."""
        # Spelled out: every trial copies, and dataclasses.replace is slower.
        return Walk(
            self.index, self.budget_bytes, self.thrifty or thrifty, self.chosen, self.deadline_s,
            set(self.present), self.present_bytes, 0, self.score,
        )  # fmt: skip

    def adopt(self, trial: Walk) -> None:
        """Goes on from a trial."""
        self.present, self.present_bytes = trial.present, trial.present_bytes
        self.peak_bytes = max(self.peak_bytes, trial.peak_bytes)

    def take(self, names: Iterable[str]) -> None:
        """``names`` are in memory from here on."""
        for name in names:
            if name not in self.present:
                self.present.add(name)
                self.present_bytes += self.index.size[name]

    def drop(self, names: Iterable[str]) -> None:
        """``names`` are not in memory any more."""
        for name in names:
            if name in self.present:
                self.present.remove(name)
                self.present_bytes -= self.index.size[name]

    def make_room(self, extra_bytes: int, locked: Set[str], stage: int) -> float:
        """Drops tensors, but for ``locked``, until ``extra_bytes`` fit besides what is present; the seconds lost.

        Raises:
            DoesNotFit: they never do, or the deadline is over.
        """
        lost_s = 0.0
        if time.monotonic() > self.deadline_s:
            raise DoesNotFit
        if self.thrifty:
            self.drop([n for n in self.present if n not in locked and self.droppable(n, stage)])
            if self.present_bytes + extra_bytes > self.budget_bytes:
                raise DoesNotFit
        elif self.present_bytes + extra_bytes > self.budget_bytes:
            lost_s = self._evict(extra_bytes, locked, stage)
        self.peak_bytes = max(self.peak_bytes, self.present_bytes + extra_bytes)
        return lost_s

    def _evict(self, extra_bytes: int, locked: Set[str], stage: int) -> float:
        """Drops by seconds per byte until ``extra_bytes`` fit, looking again at a score before using it."""
        kept = locked | self.index.pinned | self.chosen
        heap = [(self.score.get(n, 0.0), n) for n in self.present if n not in kept]
        heapq.heapify(heap)
        lost_s = 0.0
        while self.present_bytes + extra_bytes > self.budget_bytes:
            if not heap:
                raise DoesNotFit
            _, name = heapq.heappop(heap)
            cost = self.worth(name, stage)
            score = cost / max(self.index.size[name], 1)
            self.score[name] = score
            if score == NEVER:
                continue
            if heap and score > heap[0][0]:
                heapq.heappush(heap, (score, name))
                continue
            self.drop((name,))
            lost_s += cost
        return lost_s

    def droppable(self, name: str, stage: int) -> bool:
        """Whether the thrifty walk may drop ``name``: nothing needs it, or it can be made again."""
        if name in self.index.pinned or name in self.chosen:
            return False
        if not self.index.needed(name, stage):
            return True
        again = self.index.runs_again[self.index.producer[name]]
        return bool(again) and name not in again[0].recompute_reads

    def without(self, name: str, stage: int) -> float:
        """Seconds lost by an in-place run that destroys ``name``."""
        if self.thrifty:
            return 0.0 if self.droppable(name, stage) else NEVER
        return self.worth(name, stage)

    def worth(self, name: str, stage: int) -> float:
        """Seconds that the first later stage which misses ``name`` takes longer without it."""
        for use in uses(self.index, name):
            if use < stage:
                continue
            without = stage_seconds(self.index, self.present - {name}, use)
            extra = without - stage_seconds(self.index, self.present, use) if without < NEVER else NEVER
            if extra > 0:
                return extra
        return self._worth_as_input(name, stage)

    def _worth_as_input(self, name: str, stage: int) -> float:
        """The same where only recomputations of its readers still read ``name``."""
        index = self.index
        if index.last.get(name, -1) < stage:
            return 0.0
        readers = [c for c in index.readers_again.get(name, ()) if any(s >= stage for s in index.stages_again[c])]
        needed = any(n not in self.present for c in readers for n in index.problem.forward[c].outputs)
        if not needed:
            return 0.0 if index.runs_again[index.producer[name]] else NEVER
        last = index.last[name]
        with_it = rerun_seconds(index, self.present, [name], last)
        without = rerun_seconds(index, self.present - {name}, [name], last)
        return without - with_it


Choice = TypeVar("Choice", ForwardImplementation, Stage)


# These small values are not frozen: a search tries tens of thousands of runs, and freezing makes it a tenth slower.


@dataclass(slots=True)
class _Trial(Generic[Choice]):
    """``choice`` was tried, and ``walk`` is how it goes on.

    ``own_s``: the choice's own seconds. ``lost_s``: those that dropping tensors for it will cost later.
    """

    choice: Choice
    walk: Walk
    own_s: float
    lost_s: float = 0.0

    def order(self) -> tuple[float, float]:
        """What a walk minimises: time, then memory; a thrifty one the other way round."""
        peak = float(self.walk.peak_bytes)
        return (peak, self.own_s) if self.walk.thrifty else (self.own_s + self.lost_s, peak)


def _best(trials: Callable[[bool], Iterator[_Trial[Choice]]]) -> _Trial[Choice]:
    """The best trial; where none fits, the first that does if everything is dropped that may be.

    ``trials``: given whether to be thrifty, tries one choice after the other.
    """
    best = min(trials(False), key=_Trial.order, default=None) or next(trials(True), None)
    if best is None:
        raise DoesNotFit
    return best


@dataclass(slots=True)
class _Moment:
    """A forward operator is to run: ``stage`` is 0 in the forward pass.

    ``base_bytes``: in memory besides what is present: what is fixed, gradients, and its outputs. ``locked``: what may
    not be dropped for it. ``outputs``: what it adds to what is present.
    """

    stage: int
    base_bytes: int
    locked: Set[str]
    outputs: Sequence[str]


def _run_trial(
    trial: Walk, moment: _Moment, q: ForwardImplementation, own_s: float, workspace_bytes: int
) -> _Trial[ForwardImplementation] | None:
    """A run by ``q``; None where it does not fit or destroys what the walk cannot do without."""
    try:
        lost_s = trial.make_room(moment.base_bytes + workspace_bytes - q.aliased_bytes, moment.locked, moment.stage)
    except DoesNotFit:
        return None
    trial.take(moment.outputs)
    if q.overwrites is not None:
        lost_s += trial.without(q.overwrites, moment.stage)
        trial.drop((q.overwrites,))
    return _Trial(q, trial, own_s, lost_s) if lost_s < NEVER else None


def _make(walk: Walk, v: Intermediate, base_bytes: int, locked: Set[str], stage: int) -> float:
    """Makes an intermediate; the seconds of that, those lost included. ``base_bytes``: what is fixed, and gradients."""
    seconds = v.time_s + walk.make_room(base_bytes + v.bytes + v.workspace_bytes, locked, stage)
    walk.take((v.id,))
    return seconds


def forward_pass(walk: Walk) -> Iterator[Run]:
    """Runs everything once; what the backward pass may want stays until room is needed."""
    index = walk.index
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    for i, operator in enumerate(index.problem.forward):
        made = [v for v in index.intermediates[i] if v.id in walk.chosen or _must_be_made(index, v.id)]
        needed = {n for n in walk.present if final[n] >= i}
        best = _best(partial(_forward_trials, walk, i, needed, made))
        walk.adopt(best.walk)
        for v in made:
            _make(walk, v, index.problem.fixed_bytes, needed | _making_reads(made), 0)
        walk.drop([n for n in walk.present if final.get(n, -1) <= i and n not in index.last])
        yield Run(operator.id, best.choice.name, tuple(v.id for v in made))


def _forward_trials(
    walk: Walk, i: int, needed: Set[str], made: list[Intermediate], thrifty: bool
) -> Iterator[_Trial[ForwardImplementation]]:
    """Operator i by each implementation that fits and leaves what making ``made`` reads."""
    index, operator = walk.index, walk.index.problem.forward[i]
    base_bytes = index.problem.fixed_bytes + sum(index.size[n] for n in operator.outputs)
    moment = _Moment(0, base_bytes, needed, operator.outputs)
    making_reads = _making_reads(made)
    for q in index.runs_forward[i]:
        if q.overwrites in making_reads:
            continue
        trial = _run_trial(walk.copy(thrifty), moment, q, q.time_s, q.workspace_bytes)
        if trial is not None:
            yield trial


def _must_be_made(index: Windows, name: str) -> bool:
    """Whether some stage cannot do without an intermediate that can only be made in the forward pass."""
    if name not in index.last or index.runs_again[index.producer[name]]:
        return False
    return any(all(name in q.reads for q in runs) for runs in index.runs_backward if runs)


def backward_pass(walk: Walk) -> Iterator[Stage]:
    """Runs every stage by the implementation that takes least time, with what it makes the walk recompute or drop.

    Raises:
        DoesNotFit: also where more than ``MOST_AGAIN`` operators run again.
    """
    runs_again = 0
    for stage in range(len(walk.index.problem.backward)):
        best = _best(partial(_stage_trials, walk, stage))
        walk.adopt(best.walk)
        walk.drop([n for n in walk.present if not walk.index.needed(n, stage + 1)])
        runs_again += len(best.choice.recompute)
        if runs_again > MOST_AGAIN:
            raise DoesNotFit
        yield best.choice


def _stage_trials(walk: Walk, stage: int, thrifty: bool) -> Iterator[_Trial[Stage]]:
    """Each backward implementation of ``stage``, with what must run again before it; those that do not fit left out."""
    for q in walk.index.runs_backward[stage]:
        trial = walk.copy(thrifty)
        try:
            seconds, runs = _run_stage(trial, stage, q)
        except DoesNotFit:
            continue
        yield _Trial(Stage(tuple(runs), walk.index.problem.backward[stage].id, q.name), trial, seconds)


def _run_stage(walk: Walk, stage: int, q: BackwardImplementation) -> tuple[float, list[Run]]:
    """Recomputes what q misses, then q itself; seconds of both and of what was dropped for them."""
    problem = walk.index.problem
    seconds, runs = q.time_s, []
    for rerun in _reruns(walk, stage, q):
        rerun_s, run = _run_again(walk, rerun)
        seconds += rerun_s
        runs.append(run)
    extra_bytes = problem.fixed_bytes + problem.backward[stage].live_during_bytes
    seconds += walk.make_room(extra_bytes + q.workspace_bytes - q.aliased_bytes, set(q.reads), stage + 1)
    return seconds, runs


@dataclass(slots=True)
class _Rerun:
    """Operator ``operator`` runs again at ``stage``, then makes the intermediates ``made``.

    ``read_later``: what the reruns after it and the stage's backward operator read. ``reads``: the same and what it
    reads itself. ``base_bytes``: what is fixed, and gradients.
    """

    operator: int
    stage: int
    made: list[Intermediate]
    reads: Set[str]
    read_later: Set[str]
    base_bytes: int


def _reruns(walk: Walk, stage: int, q: BackwardImplementation) -> list[_Rerun]:
    """What must run again before ``q``, in forward order.

    Raises:
        DoesNotFit: something that ``q`` needs cannot be made again at this stage.
    """
    index, problem = walk.index, walk.index.problem
    operators = reruns(index, walk.present, q.reads, stage)
    if operators is None:
        raise DoesNotFit
    base_bytes = problem.fixed_bytes + problem.backward[stage].live_before_bytes
    latest_first: list[_Rerun] = []
    read_later = set(q.reads)
    for i, wanted in reversed(operators.items()):
        made = [v for v in index.intermediates[i] if v.id in wanted]
        reads = read_later | _rerun_reads(index, i, made)
        latest_first.append(_Rerun(i, stage, made, reads, read_later, base_bytes))
        read_later = reads
    return latest_first[::-1]


def _rerun_reads(index: Windows, i: int, made: list[Intermediate]) -> set[str]:
    """What operator i reads when it runs again, and what making ``made`` reads besides i's outputs."""
    operator = index.problem.forward[i]
    besides = _making_reads(made) - set(operator.outputs)
    return {*operator.inputs, *index.runs_again[i][0].recompute_reads, *besides}


def _run_again(walk: Walk, rerun: _Rerun) -> tuple[float, Run]:
    """One recomputation by its best implementation, then its intermediates; seconds, those lost included."""
    index, stage = walk.index, rerun.stage
    best = min(_rerun_trials(walk, rerun), key=_Trial.order, default=None)
    if best is None:
        raise DoesNotFit
    walk.adopt(best.walk)
    seconds = best.own_s + best.lost_s
    for v in rerun.made:
        seconds += _make(walk, v, rerun.base_bytes, rerun.read_later | set(v.reads), stage)
    walk.drop([n for n in walk.present if n not in rerun.read_later and not index.needed(n, stage)])
    made = tuple(v.id for v in rerun.made)
    return seconds, Run(index.problem.forward[rerun.operator].id, best.choice.name, made)


def _rerun_trials(walk: Walk, rerun: _Rerun) -> Iterator[_Trial[ForwardImplementation]]:
    """The rerun by each implementation that is usable and fits."""
    index, operator = walk.index, walk.index.problem.forward[rerun.operator]
    # What is there and made again counts twice here: as present and as output.
    base_bytes = rerun.base_bytes + sum(index.size[n] for n in operator.outputs)
    missing = [n for n in operator.outputs if n not in walk.present]
    moment = _Moment(rerun.stage, base_bytes, rerun.reads, missing)
    for q in _usable_again(index, rerun):
        trial = _run_trial(walk.copy(thrifty=False), moment, q, *recompute_cost(q))
        if trial is not None:
            yield trial


def _usable_again(index: Windows, rerun: _Rerun) -> Iterator[ForwardImplementation]:
    """Implementations that read what was prepared for the fastest one, and destroy nothing that is read later or
    whose window has not begun."""
    offered = index.runs_again[rerun.operator]
    read_later = rerun.read_later | _making_reads(rerun.made)
    for q in offered:
        if q.recompute_reads != offered[0].recompute_reads:
            continue
        if q.overwrites is None or (q.overwrites not in read_later and index.start[q.overwrites] <= rerun.stage):
            yield q


def _making_reads(made: list[Intermediate]) -> set[str]:
    """What making the intermediates reads."""
    return {name for v in made for name in v.reads}
