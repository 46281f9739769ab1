"""Constructive plans: fast, feasible, and good enough for the solver to start from.

The steps are walked in order with a set of tensors in memory. Whenever the next run does not fit,
what is cheapest to do without, per byte, is dropped; whenever a read is missing, what it needs is run
again. Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021) evicts in the same way, but while
training and blind to the future; here the next use of every tensor is known. The *thrifty* walk drops
everything at once and takes the leanest implementations: its peak is the smallest budget known.

The walk counts a tensor until it is dropped, replay until its last read: replay never finds more.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from monet.planner.problem import BackwardImplementation, ForwardImplementation, Problem
from monet.planner.readback import Runs, without_useless
from monet.planner.replay import replay
from monet.planner.solution import Run, Solution, Stage
from monet.planner.windows import Windows, recompute_cost, windows

NEVER = float("inf")
TRIALS = 64
SHARES = (1.0, 0.97, 0.93, 0.88)
SMALL = (0.01, 0.04, 0.1, 0.25)


class _DoesNotFit(Exception):
    """This way of running a step exceeds the budget whatever is dropped."""


@dataclass(slots=True)
class _Walk:
    """Memory while the plan is being made.

    ``present``: tensors in memory, ``held`` bytes of them.
    ``budget``: bytes; the thrifty walk has none and minimises ``worst`` instead. ``chosen``: never
    dropped while needed; its intermediates are made in the forward pass.
    """

    index: Windows
    budget: int
    thrifty: bool
    chosen: frozenset[str] = frozenset()
    present: set[str] = field(default_factory=set)
    held: int = 0
    worst: int = 0
    score: dict[str, float] = field(default_factory=dict)

    def copy(self, thrifty: bool) -> _Walk:
        return _Walk(
            self.index, self.budget, self.thrifty or thrifty, self.chosen, set(self.present), self.held, 0, self.score
        )

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
        if self.thrifty:
            self.drop([n for n in self.present if n not in locked and self.droppable(n, stage)])
            if self.held + extra > self.budget:
                raise _DoesNotFit
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
                raise _DoesNotFit
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
        for use in _uses(self.index, name):
            if use < stage:
                continue
            without = _stage_seconds(self.index, self.present - {name}, use)
            extra = without - _stage_seconds(self.index, self.present, use) if without < NEVER else NEVER
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
        with_it = _closure_seconds(index, self.present, [name], last)
        without = _closure_seconds(index, self.present - {name}, [name], last)
        return without - with_it


def _uses(index: Windows, name: str) -> list[int]:
    return [stage for stage in range(index.last.get(name, -1) + 1) if name in index.reads[stage]]


def _stage_seconds(index: Windows, present: set[str], stage: int) -> float:
    return min(
        (q.time_s + _closure_seconds(index, present, q.reads, stage) for q in index.runs_backward[stage]),
        default=0.0,
    )


def _closure(index: Windows, present: set[str], names: Iterable[str], stage: int) -> dict[int, set[str]] | None:
    """Operators to run again at ``stage`` so that ``names`` are there, each with the intermediates it makes.

    None if something cannot be made again at this stage.
    """
    heap: list[int] = []
    runs: dict[int, set[str]] = {}

    def want(name: str) -> bool:
        if name in present:
            return True
        i = index.producer[name]
        # A tensor outside its window can only be there as kept.
        if name in index.pinned or stage not in index.stages_again[i] or not index.start[name] <= stage:
            return False
        if name in index.runs_again[i][0].recompute_reads:
            return False  # its own recomputation reads it
        if i not in runs:
            runs[i] = set()
            heapq.heappush(heap, -i)
        if name not in index.problem.forward[i].outputs:
            runs[i].add(name)
        return True

    if not all([want(name) for name in names]):
        return None
    while heap:
        i = -heapq.heappop(heap)
        making = [n for v in index.intermediates[i] if v.id in runs[i] for n in v.reads]
        operator = index.problem.forward[i]
        reads = [*operator.inputs, *index.runs_again[i][0].recompute_reads]
        reads += [n for n in making if n not in operator.outputs]
        if not all([want(name) for name in reads]):
            return None
    return dict(sorted(runs.items()))


def _closure_seconds(index: Windows, present: set[str], names: Iterable[str], stage: int) -> float:
    runs = _closure(index, present, names, stage)
    if runs is None:
        return NEVER
    made = sum(v.time_s for i, wanted in runs.items() if wanted for v in index.intermediates[i] if v.id in wanted)
    return made + sum(recompute_cost(index.runs_again[i][0])[0] for i in runs)


def _forward_pass(walk: _Walk) -> list[Run]:
    """Runs everything once; what the backward pass may want stays until room is needed."""
    index = walk.index
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    runs = []
    for i, operator in enumerate(index.problem.forward):
        locked = {n for n in walk.present if final[n] >= i}
        outputs = sum(index.size[n] for n in operator.outputs)
        best: tuple[tuple[float, float], _Walk, ForwardImplementation] | None = None
        for thrifty, q in itertools.product((False, True), index.runs_forward[i]):
            if thrifty and best is not None:
                break
            trial = walk.copy(thrifty)
            try:
                extra = index.problem.fixed_bytes + outputs + q.workspace_bytes - q.aliased_bytes
                lost = trial.fit(extra, locked, 0)
                trial.take(operator.outputs)
                if q.overwrites is not None:
                    lost += trial.without(q.overwrites, 0)
                    trial.drop((q.overwrites,))
            except _DoesNotFit:
                continue
            order = (float(trial.worst), q.time_s) if walk.thrifty else (q.time_s + lost, float(trial.worst))
            if lost < NEVER and (best is None or order < best[0]):
                best = (order, trial, q)
        if best is None:
            raise _DoesNotFit
        _adopt(walk, best[1])
        made = tuple(v.id for v in index.intermediates[i] if v.id in walk.chosen or _must_be_made(index, v.id))
        for name in made:
            walk.fit(index.problem.fixed_bytes + index.size[name] + _workspace(index, name), set(locked), 0)
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


def _backward_pass(walk: _Walk) -> Iterator[Stage]:
    for stage, operator in enumerate(walk.index.problem.backward):
        best: tuple[tuple[float, float], _Walk, Stage] | None = None
        for thrifty, q in itertools.product((False, True), walk.index.runs_backward[stage]):
            if thrifty and best is not None:
                break
            trial = walk.copy(thrifty)
            try:
                cost, runs = _run_stage(trial, stage, q)
            except _DoesNotFit:
                continue
            order = (float(trial.worst), cost) if walk.thrifty else (cost, float(trial.worst))
            if best is None or order < best[0]:
                best = (order, trial, Stage(tuple(runs), operator.id, q.name))
        if best is None:
            raise _DoesNotFit
        _adopt(walk, best[1])
        walk.drop([n for n in walk.present if not walk.index.needed(n, stage + 1)])
        yield best[2]


def _adopt(walk: _Walk, trial: _Walk) -> None:
    walk.present, walk.held, walk.score = trial.present, trial.held, trial.score
    walk.worst = max(walk.worst, trial.worst)


def _run_stage(walk: _Walk, stage: int, q: BackwardImplementation) -> tuple[float, list[Run]]:
    """Recomputes what q misses, then q itself; seconds of both and of what was dropped for them."""
    index, problem = walk.index, walk.index.problem
    closure = _closure(index, walk.present, q.reads, stage)
    if closure is None:
        raise _DoesNotFit
    operators = list(closure)
    base = problem.fixed_bytes + problem.backward[stage].live_before_bytes
    cost, runs = q.time_s, []
    later: list[set[str]] = [set(q.reads)]
    for i in reversed(operators):
        later.append(later[-1] | _reads(index, i, closure[i]))
    later.reverse()  # later[n]: read by the n-th recomputation or afterwards
    for n, i in enumerate(operators):
        seconds, run = _run_again(walk, stage, i, closure[i], later[n], later[n + 1], base)
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
    walk: _Walk, stage: int, i: int, making: set[str], locked: set[str], later: set[str], base: int
) -> tuple[float, Run]:
    """One recomputation by its best implementation, then the intermediates wanted of it."""
    index, operator = walk.index, walk.index.problem.forward[i]
    outputs = [n for n in operator.outputs if n not in walk.present]
    best: tuple[tuple[float, float], float, _Walk, ForwardImplementation] | None = None
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
        except _DoesNotFit:
            continue
        trial.take(outputs)
        if q.overwrites is not None:
            lost += trial.without(q.overwrites, stage)
            trial.drop((q.overwrites,))
        order = (float(trial.worst), seconds) if walk.thrifty else (seconds + lost, float(trial.worst))
        if lost < NEVER and (best is None or order < best[0]):
            best = (order, seconds + lost, trial, q)
    if best is None:
        raise _DoesNotFit
    _adopt(walk, best[2])
    cost = best[1]
    made = tuple(v.id for v in index.intermediates[i] if v.id in making)
    for v in index.intermediates[i]:
        if v.id in making:
            cost += v.time_s + walk.fit(base + v.bytes + v.workspace_bytes, later | set(v.reads), stage)
            walk.take((v.id,))
    walk.drop([n for n in walk.present if n not in later and not index.needed(n, stage)])
    return cost, Run(operator.id, best[3].name, made)


def construct(index: Windows, budget_bytes: int) -> Runs | None:
    """The best plan within the budget that a few walks find, or None.

    Between walks, intermediates (sign bits, pool indices) are added to the forward pass one by one,
    largest operator first, and stay if the plan gets cheaper.
    """
    best, best_s, budget = None, NEVER, budget_bytes
    chosen: frozenset[str] = frozenset()
    everything = _needed_intermediates(index)
    # An eviction is greedy, so a walk with less memory can end up with the better plan.
    for share, trial in itertools.product(SHARES, (chosen, everything, *_small(index))):
        runs, seconds = _walk(index, int(budget_bytes * share), trial)
        if runs is not None and seconds < best_s:
            best, best_s, chosen, budget = runs, seconds, trial, int(budget_bytes * share)
    if best is None:
        return None
    order = sorted(everything, key=lambda v: (-_output_bytes(index, v), v))
    for name in order[:TRIALS]:
        trial = chosen ^ {name}
        runs, seconds = _walk(index, budget, trial)
        if runs is not None and seconds < best_s:
            best, best_s, chosen = runs, seconds, trial
    return best


def _needed_intermediates(index: Windows) -> frozenset[str]:
    return frozenset(v.id for made in index.intermediates for v in made if v.id in index.last)


def _small(index: Windows) -> list[frozenset[str]]:
    """Everything the backward pass may need that is small, by several measures of small, and all intermediates."""
    largest = max(index.size.values(), default=0)
    sets = [_needed_intermediates(index) | {n for n in index.last if index.size[n] <= part * largest} for part in SMALL]
    return list(dict.fromkeys(sets))


def _output_bytes(index: Windows, intermediate: str) -> int:
    return sum(index.size[n] for n in index.problem.forward[index.producer[intermediate]].outputs)


def _walk(index: Windows, budget_bytes: int, chosen: frozenset[str]) -> tuple[Runs | None, float]:
    walk = _Walk(index, budget_bytes, thrifty=False, chosen=chosen)
    try:
        runs = Runs(tuple(_forward_pass(walk)), tuple(_backward_pass(walk)))
    except _DoesNotFit:
        return None, NEVER
    runs = without_useless(index.problem, runs)
    found = replay(index.problem, runs.solution())
    return (runs, found.objective_s) if found.peak_bytes <= budget_bytes else (None, NEVER)


def smallest_budget(problem: Problem) -> tuple[int, Solution] | None:
    """The smallest budget known to be feasible, and the plan that shows it.

    Walks that keep nothing, or only what is small, and take the leanest implementations at every
    step, so the plan is slow to run. None if even that cannot be built (a tensor cannot be made).
    """
    index = windows(problem, None)
    best: tuple[int, Solution] | None = None
    everything = _needed_intermediates(index)
    for small in (frozenset[str](), *_small(index)):
        for chosen in (small - everything, small | everything):
            walk = _Walk(index, sys.maxsize, thrifty=True, chosen=chosen)
            try:
                runs = without_useless(problem, Runs(tuple(_forward_pass(walk)), tuple(_backward_pass(walk))))
            except _DoesNotFit:
                continue
            found = runs.solution()
            cost = replay(problem, found)
            if best is None or cost.peak_bytes < best[0]:
                found = replace(found, objective_s=cost.objective_s, peak_bytes=cost.peak_bytes)
                best = (cost.peak_bytes, found)
    return best
