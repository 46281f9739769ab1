"""When the copies of a plan begin and end: as early as memory is there, so that they hide behind operators.

Given what is moved and where it is first read back:

* Its write is issued when it has been made. Its memory is free once the write is over by the clock; where an operator
  does not fit before, the step waits for the oldest write that nobody reads any more.
* Its return is issued early enough to be over when it is read, the copies after it considered: the latest first, each
  before the one that follows it. Where an operator in between needs the memory, it is issued after that.

Capuchin (Peng et al., ASPLOS 2020) times swaps by the same rule, from measured accesses; FlashNeuron (Bae et al., FAST
2021) writes in the order of the forward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from monet.planner.problem import Problem, SecondMemory, recompute_cost
from monet.planner.program.index import Index
from monet.planner.replay import replay
from monet.planner.runs import without_useless
from monet.planner.solution import Run, Runs, Stage

SLACK = 0.25
"""Of a copy's time: by how much earlier its return is issued than need be, where memory is there."""


def moving(index: Index, forward: Iterable[Run], away: Set[str]) -> tuple[Run, ...]:
    """A forward pass that moves ``away``: each is written once it is made, and gone after its last reader."""
    if not away:
        return tuple(forward)
    writes: dict[int, list[str]] = {}
    releases: dict[int, list[str]] = {}
    for name in sorted(away, key=lambda n: (index.producer[n], n)):
        made = index.producer[name]
        writes.setdefault(made, []).append(name)
        if not index.problem.in_place:
            releases.setdefault((index.consumers.get(name) or (made,))[-1], []).append(name)
    return tuple(
        replace(run, writes=tuple(writes.get(i, ())), releases=tuple(releases.get(i, ())))
        for i, run in enumerate(forward)
    )


def with_copies(problem: Problem, runs: Runs, budget_bytes: int) -> Runs:
    """``runs`` with its copies at the best times that fit the budget, where the rest of it does.

    Of each tensor that is moved, the write is expected where it is made, the release after its last reader of the
    forward pass, and issues with their returns (``moving``, and walks).
    """
    if not runs.moved or problem.in_place:
        return runs
    runs, second = without_useless(problem, runs), problem.beside
    if second is None:
        return Runs(_writes_last(runs.forward), runs.stages)
    needs = _Needs.of(problem, runs)
    return Runs(
        _timed_writes(runs.forward, needs, second, budget_bytes),
        _timed_returns(runs.stages, needs, second, budget_bytes),
    )


def _writes_last(forward: tuple[Run, ...]) -> tuple[Run, ...]:
    """Each write where its memory is released: the step waits for it in any case."""
    return tuple(replace(run, writes=run.releases) for run in forward)


@dataclass(slots=True)
class _Needs:
    """What a plan needs but for copies under way: bytes and seconds of each forward operator and of each stage.

    ``reads``: what is moved and read by each stage. ``size``: of tensors and intermediates.
    """

    forward_bytes: list[int]
    forward_s: list[float]
    stage_bytes: list[int]
    stage_s: list[float]
    reads: list[set[str]]
    size: dict[str, int]

    @classmethod
    def of(cls, problem: Problem, runs: Runs) -> _Needs:
        forward, making = _seconds(problem)
        backward = {(o.id, q.name): q.time_s for o in problem.backward for q in o.implementations}

        def run_s(run: Run, again: int) -> float:
            return forward[run.operator, run.implementation][again] + sum(making[name] for name in run.intermediates)

        needs = cls(
            [0] * len(runs.forward),
            [run_s(run, 0) for run in runs.forward],
            [0] * len(runs.stages),
            [
                sum(run_s(run, 1) for run in stage.recompute) + backward[stage.backward, stage.implementation]
                for stage in runs.stages
            ],
            stage_reads(problem, runs),
            {tensor.id: tensor.bytes for tensor in problem.tensors} | {v.id: v.bytes for v in problem.intermediates},
        )
        at = -1
        for moment in replay(problem, runs).moments:
            if moment.stage is not None:
                needs.stage_bytes[moment.stage] = max(needs.stage_bytes[moment.stage], moment.bytes)
            else:
                at += moment.what.startswith("forward")
                needs.forward_bytes[at] = max(needs.forward_bytes[at], moment.bytes)
        return needs


def _seconds(problem: Problem) -> tuple[dict[tuple[str, str], tuple[float, float]], dict[str, float]]:
    """Of each forward implementation, in the forward pass and again; of making each intermediate."""
    runs = {
        (operator.id, q.name): (q.time_s, recompute_cost(q)[0])
        for operator in problem.forward
        for q in operator.implementations
    }
    return runs, {v.id: v.time_s for v in problem.intermediates}


def stage_reads(problem: Problem, runs: Runs) -> list[set[str]]:
    """Of each stage: what it reads of what is moved."""
    moved = set(runs.moved)
    operators = {operator.id: operator for operator in problem.forward}
    again = {(o.id, q.name): q.recompute_reads for o in problem.forward for q in o.implementations}
    backward = {(o.id, q.name): q.reads for o in problem.backward for q in o.implementations}
    made_of = {v.id: v.reads for v in problem.intermediates}
    found: list[set[str]] = []
    for stage in runs.stages:
        reads = set(backward[stage.backward, stage.implementation])
        for run in stage.recompute:
            reads.update(operators[run.operator].inputs, again[run.operator, run.implementation])
            reads.update(name for v in run.intermediates for name in made_of[v])
        found.append(reads & moved)
    return found


def _timed_writes(forward: tuple[Run, ...], needs: _Needs, second: SecondMemory, budget_bytes: int) -> tuple[Run, ...]:
    final = {name: i for i, run in enumerate(forward) for name in run.releases}
    releases: list[list[str]] = [[] for _ in forward]
    under_way: deque[tuple[str, float]] = deque()  # with the time at which it is over, the oldest first
    now = free = 0.0
    for i, run in enumerate(forward):
        held = sum(needs.size[name] for name, _ in under_way if final[name] < i)
        for name, done in list(under_way):
            over = needs.forward_bytes[i] + held > budget_bytes
            if final[name] < i and (done <= now or over):
                now = max(now, done)
                under_way.remove((name, done))
                releases[i - 1].append(name)
                held -= needs.size[name]
        now += needs.forward_s[i]
        for name in run.writes:
            free = max(free, now) + second.write_s(needs.size[name])
            under_way.append((name, free))
    releases[-1].extend(name for name, _ in under_way)
    return tuple(replace(run, releases=tuple(names)) for run, names in zip(forward, releases, strict=True))


def _timed_returns(
    stages: tuple[Stage, ...], needs: _Needs, second: SecondMemory, budget_bytes: int
) -> tuple[Stage, ...]:
    begins = [0.0]
    for seconds in needs.stage_s:
        begins.append(begins[-1] + seconds)
    held = list(needs.stage_bytes)
    issues: list[list[tuple[int, str]]] = [[] for _ in stages]
    following = begins[-1]
    read = _read_before(stages, needs.reads)
    for u in range(len(stages) - 1, -1, -1):
        for name in reversed(stages[u].returns):
            seconds, size = second.read_s(needs.size[name]), needs.size[name]
            begin = min(begins[u], following) - seconds
            wanted, first = begin - SLACK * seconds, read[u].get(name, -1) + 1
            r = u
            while r > first and begins[r] > wanted and held[r - 1] + size <= budget_bytes:
                r -= 1
                held[r] += size
            following = max(begin, begins[r]) if r else begin
            issues[r].append((u, name))
    return tuple(
        replace(stage, issues=tuple(name for _, name in sorted(issued, key=lambda pair: pair[0])))
        for stage, issued in zip(stages, issues, strict=True)
    )


def _read_before(stages: tuple[Stage, ...], reads: list[set[str]]) -> list[dict[str, int]]:
    """For each stage, of what it reads back a second time, the last stage that read it until then."""
    last: dict[str, int] = {}
    found: list[dict[str, int]] = []
    for u, stage in enumerate(stages):
        found.append({name: last[name] for name in stage.returns if name in last})
        last.update(dict.fromkeys((*reads[u], *stage.returns), u))
    return found
