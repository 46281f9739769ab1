"""Walk through a training step with a set of tensors in memory, dropping and recomputing on the way.

Whenever the next run does not fit, what is cheapest to do without, per byte, is dropped; whenever a
read is missing, what it needs is run again. Dynamic Tensor Rematerialization (Kirisame et al., ICLR
2021) evicts in the same way, but while training and blind to the future; here the next use of every
tensor is known. A *thrifty* walk drops everything at once and takes the leanest implementations.

The walk counts a tensor until it is dropped, replay until its last read: replay never finds more.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from monet.planner.construction.reruns import NEVER, closure, closure_seconds, stage_seconds, uses
from monet.planner.problem import BackwardImplementation, ForwardImplementation, recompute_cost
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

    ``present``: tensors in memory, ``held`` bytes of them.
    ``budget``: bytes; the thrifty walk has none and minimises ``worst`` instead. ``chosen``: never
    dropped while needed; its intermediates are made in the forward pass. ``fast``: stages that run their
    fastest implementation, whatever has to be dropped for its workspace. ``deadline_s``: on ``time.monotonic``; a walk
    that drops everything runs a chain of n operators n²/2 times, and unrolled networks are long chains.
    """

    index: Windows
    budget: int
    thrifty: bool
    chosen: frozenset[str] = frozenset()
    fast: frozenset[int] = frozenset()
    deadline_s: float = math.inf
    present: set[str] = field(default_factory=set)
    held: int = 0
    worst: int = 0
    score: dict[str, float] = field(default_factory=dict)

    def copy(self, thrifty: bool) -> Walk:
        return Walk(
            self.index, self.budget, self.thrifty or thrifty, self.chosen, self.fast, self.deadline_s,
            set(self.present), self.held, 0, self.score,
        )  # fmt: skip

    def take(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.present:
                self.present.add(name)
                self.held += self.index.size[name]

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.present:
                self.present.remove(name)
                self.held -= self.index.size[name]

    def fit(self, extra: int, locked: set[str], stage: int) -> float:
        """Makes room for a moment with ``extra`` bytes beyond what is present; returns seconds lost."""
        lost = 0.0
        if time.monotonic() > self.deadline_s:
            raise DoesNotFit
        if self.thrifty:
            self.drop([n for n in self.present if n not in locked and self.droppable(n, stage)])
            if self.held + extra > self.budget:
                raise DoesNotFit
        elif self.held + extra > self.budget:
            lost = self._evict(extra, locked, stage)
        self.worst = max(self.worst, self.held + extra)
        return lost

    def _evict(self, extra: int, locked: set[str], stage: int) -> float:
        """Drops by seconds per byte until ``extra`` fits, looking again at a score before using it."""
        fixed = locked | self.index.pinned | self.chosen
        heap = [(self.score.get(n, 0.0), n) for n in self.present if n not in fixed]
        heapq.heapify(heap)
        lost = 0.0
        while self.held + extra > self.budget:
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
            lost += cost
        return lost

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
        with_it = closure_seconds(index, self.present, [name], last)
        without = closure_seconds(index, self.present - {name}, [name], last)
        return without - with_it


def forward_pass(walk: Walk) -> list[Run]:
    """Runs everything once; what the backward pass may want stays until room is needed."""
    index = walk.index
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    runs = []
    for i, operator in enumerate(index.problem.forward):
        locked = {n for n in walk.present if final[n] >= i}
        outputs = sum(index.size[n] for n in operator.outputs)
        best: tuple[tuple[float, float], Walk, ForwardImplementation] | None = None
        made = tuple(v.id for v in index.intermediates[i] if v.id in walk.chosen or _must_be_made(index, v.id))
        read_by_making = {n for v in index.intermediates[i] if v.id in made for n in v.reads}
        for thrifty, q in itertools.product((False, True), index.runs_forward[i]):
            if thrifty and best is not None:
                break
            if q.overwrites in read_by_making:
                continue
            trial = walk.copy(thrifty)
            try:
                extra = index.problem.fixed_bytes + outputs + q.workspace_bytes - q.aliased_bytes
                lost = trial.fit(extra, locked, 0)
                trial.take(operator.outputs)
                if q.overwrites is not None:
                    lost += trial.without(q.overwrites, 0)
                    trial.drop((q.overwrites,))
            except DoesNotFit:
                continue
            order = (float(trial.worst), q.time_s) if walk.thrifty else (q.time_s + lost, float(trial.worst))
            if lost < NEVER and (best is None or order < best[0]):
                best = (order, trial, q)
        if best is None:
            raise DoesNotFit
        _adopt(walk, best[1])
        for name in made:
            walk.fit(index.problem.fixed_bytes + index.size[name] + _workspace(index, name), locked | read_by_making, 0)
            walk.take((name,))
        walk.drop([n for n in walk.present if final.get(n, -1) <= i and n not in index.last])
        runs.append(Run(operator.id, best[2].name, made))
    return runs


def _workspace(index: Windows, name: str) -> int:
    return next(v.workspace_bytes for v in index.intermediates[index.producer[name]] if v.id == name)


def _must_be_made(index: Windows, name: str) -> bool:
    """Whether some stage cannot do without an intermediate that can only be made in the forward pass."""
    if name not in index.last or index.runs_again[index.producer[name]]:
        return False
    return any(all(name in q.reads for q in runs) for runs in index.runs_backward if runs)


def backward_pass(walk: Walk) -> Iterator[Stage]:
    again = 0
    for stage, operator in enumerate(walk.index.problem.backward):
        best: tuple[tuple[float, float], Walk, Stage] | None = None
        # Sorted by seconds: the first is the fastest.
        offered = walk.index.runs_backward[stage][: 1 if stage in walk.fast else None]
        for thrifty, q in itertools.product((False, True), offered):
            if thrifty and best is not None:
                break
            trial = walk.copy(thrifty)
            try:
                cost, runs = _run_stage(trial, stage, q)
            except DoesNotFit:
                continue
            order = (float(trial.worst), cost) if walk.thrifty else (cost, float(trial.worst))
            if best is None or order < best[0]:
                best = (order, trial, Stage(tuple(runs), operator.id, q.name))
        if best is None:
            raise DoesNotFit
        _adopt(walk, best[1])
        walk.drop([n for n in walk.present if not walk.index.needed(n, stage + 1)])
        again += len(best[2].recompute)
        if again > MOST_AGAIN:
            raise DoesNotFit
        yield best[2]


def _adopt(walk: Walk, trial: Walk) -> None:
    walk.present, walk.held, walk.score = trial.present, trial.held, trial.score
    walk.worst = max(walk.worst, trial.worst)


def _run_stage(walk: Walk, stage: int, q: BackwardImplementation) -> tuple[float, list[Run]]:
    """Recomputes what q misses, then q itself; seconds of both and of what was dropped for them."""
    index, problem = walk.index, walk.index.problem
    again = closure(index, walk.present, q.reads, stage)
    if again is None:
        raise DoesNotFit
    operators = list(again)
    base = problem.fixed_bytes + problem.backward[stage].live_before_bytes
    cost, runs = q.time_s, []
    later: list[set[str]] = [set(q.reads)]
    for i in reversed(operators):
        later.append(later[-1] | _reads(index, i, again[i]))
    later.reverse()  # later[n]: read by the n-th recomputation or afterwards
    for n, i in enumerate(operators):
        seconds, run = _run_again(walk, stage, i, again[i], later[n], later[n + 1], base)
        cost += seconds
        runs.append(run)
    extra = problem.fixed_bytes + problem.backward[stage].live_during_bytes + q.workspace_bytes - q.aliased_bytes
    cost += walk.fit(extra, set(q.reads), stage + 1)
    return cost, runs


def _reads(index: Windows, i: int, making: set[str]) -> set[str]:
    made = {n for v in index.intermediates[i] if v.id in making for n in v.reads}
    operator = index.problem.forward[i]
    return {*operator.inputs, *index.runs_again[i][0].recompute_reads, *(made - set(operator.outputs))}


def _run_again(
    walk: Walk, stage: int, i: int, making: set[str], locked: set[str], later: set[str], base: int
) -> tuple[float, Run]:
    """One recomputation by its best implementation, then the intermediates wanted of it."""
    index, operator = walk.index, walk.index.problem.forward[i]
    outputs = [n for n in operator.outputs if n not in walk.present]
    best: tuple[tuple[float, float], float, Walk, ForwardImplementation] | None = None
    kept_for_making = {n for v in index.intermediates[i] if v.id in making for n in v.reads}
    for q in index.runs_again[i]:
        if q.recompute_reads != index.runs_again[i][0].recompute_reads:
            continue  # the closure was made for the fastest one's reads
        if q.overwrites is not None and (
            q.overwrites in later | kept_for_making or not index.start[q.overwrites] <= stage
        ):
            continue
        trial = walk.copy(False)
        seconds, workspace = recompute_cost(q)
        # What is there and made again counts twice here: as present and as output.
        extra = base + sum(index.size[n] for n in operator.outputs) + workspace - q.aliased_bytes
        try:
            lost = trial.fit(extra, locked, stage)
        except DoesNotFit:
            continue
        trial.take(outputs)
        if q.overwrites is not None:
            lost += trial.without(q.overwrites, stage)
            trial.drop((q.overwrites,))
        order = (float(trial.worst), seconds) if walk.thrifty else (seconds + lost, float(trial.worst))
        if lost < NEVER and (best is None or order < best[0]):
            best = (order, seconds + lost, trial, q)
    if best is None:
        raise DoesNotFit
    _adopt(walk, best[2])
    cost = best[1]
    made = tuple(v.id for v in index.intermediates[i] if v.id in making)
    for v in index.intermediates[i]:
        if v.id in making:
            cost += v.time_s + walk.fit(base + v.bytes + v.workspace_bytes, later | set(v.reads), stage)
            walk.take((v.id,))
    walk.drop([n for n in walk.present if n not in later and not index.needed(n, stage)])
    return cost, Run(operator.id, best[3].name, made)
