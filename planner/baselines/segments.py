"""Segments over the forward order, each run again once: training deep nets with sublinear memory cost.

    forward     [ a  b | c  d  e | f  g ]        | cuts; kept: what is read across one, and the last segment
    backward      g f   (c d e again) e d c   (a b again) b a

Chen et al. 2016, √n segments and algorithm 3 (segments of about equal bytes). A tensor that
a later segment reads is kept wherever it is made, so skips over any distance are allowed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from monet.errors import ConfigError
from monet.planner.baselines.blocks import crossing_bytes
from monet.planner.baselines.runs import cheapest, forward_runs, made_in_forward, replayed
from monet.planner.problem import Problem
from monet.planner.solution import Run, Solution, Stage

FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
"""Numbers of segments to try, in parts of √n."""


def sqrt_n(problem: Problem, budget_bytes: int, *, segments: int | None = None) -> Solution:
    """Segments over the forward order, each run again once (Chen et al. 2016, the O(√n) algorithm and algorithm 3).

    Kept: what a later segment reads, what is pinned or cannot be run again, and all of the last segment.
    The others are run again as a whole, by defaults, before the first backward operator that reads one of
    their tensors. ``segments``: how many, at most one an operator; None tries the paper's √n and a few other
    numbers, 1 (nothing runs again) among them, and takes the cheapest plan that fits.

    Raises:
        ConfigError: ``segments`` is less than 1.
        InfeasibleBudget: none of the numbers of segments fits.
    """
    begun = time.monotonic()
    count = len(problem.forward)
    if segments is not None and segments < 1:
        raise ConfigError(f"a step has 1 segment or more, not {segments}")
    found: list[Solution] = []
    for number in numbers_to_try(count) if segments is None else [min(segments, count)]:
        cuts = _cuts(problem, number)
        segment = [sum(cut <= i for cut in cuts) - 1 for i in range(count)]
        forward, stages = run_again(problem, [k if k < len(cuts) - 1 else None for k in segment])
        found.append(replayed(problem, forward, stages, begun))
    return cheapest(problem, "running segments again", budget_bytes, found)


def numbers_to_try(count: int) -> list[int]:
    """Numbers of segments that ``count`` operators or blocks are cut into: a few, and about √count; ascending."""
    numbers = {1, 2, 3, *(round(math.sqrt(count) * factor) for factor in FACTORS)}
    return sorted({max(1, min(number, count)) for number in numbers})


def _cuts(problem: Problem, segments: int) -> list[int]:
    """Positions where segments begin, 0 first: even in bytes made, each moved to where the fewest bytes cross.

    A cut inside a residual block would keep its skip as well; half a segment either way is looked at.
    """
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    made = [sum(size[name] for name in operator.outputs) for operator in problem.forward]
    done, total = 0, sum(made)
    before = []  # bytes made before each position
    for count in made:
        before.append(done)
        done += count
    crossing = crossing_bytes(problem)
    cuts = [0]
    for k in range(1, segments):
        near = [i for i in range(cuts[-1] + 1, len(made)) if abs(before[i] * segments - k * total) * 2 < total]
        if near:
            cuts.append(min(near, key=lambda i: (crossing[i], abs(before[i] * segments - k * total))))
    return cuts


def run_again(
    problem: Problem, segment: Sequence[int | None], saved: Collection[str] = ()
) -> tuple[tuple[Run, ...], list[Stage]]:
    """The plan that runs each segment again, once, before the first backward operator that reads what is not kept.

    ``segment``: the number of each forward operator's segment; None for one that is not run again and of which all is
    kept. ``saved``: tensors that are kept besides. Of a segment, only that runs again which the backward pass needs.
    """
    producer = {name: i for i, operator in enumerate(problem.forward) for name in operator.outputs}
    kept = _kept(problem, segment, producer).union(saved)
    read = {name for o in problem.backward for name in o.implementations[0].reads if name in producer}
    wanted: dict[int | None, set[str]] = {}
    for name in read - kept:
        wanted.setdefault(segment[producer[name]], set()).add(name)
    members: dict[int | None, list[int]] = {}
    for i, number in enumerate(segment):
        members.setdefault(number, []).append(i)
    stages, present = [], set(kept)
    for operator in problem.backward:
        default = operator.implementations[0]
        missing = {segment[producer[n]] for n in default.reads if n in producer and n not in present}
        again = sorted(i for number in missing for i in _needed(problem, members[number], wanted[number], kept))
        present |= {name for i in again for name in problem.forward[i].outputs}
        runs = tuple(Run(problem.forward[i].id, problem.forward[i].implementations[0].name) for i in again)
        stages.append(Stage(runs, operator.id, default.name))
    return forward_runs(problem, made_in_forward(problem)), stages


def _kept(problem: Problem, segment: Sequence[int | None], producer: dict[str, int]) -> set[str]:
    """Tensors that stay from the forward pass: what crosses a border, and what must or need not be run again."""
    kept = {tensor.id for tensor in problem.tensors if tensor.pinned}
    for i, operator in enumerate(problem.forward):
        if segment[i] is None or not operator.recomputable:
            kept |= set(operator.outputs)
        kept |= {name for name in operator.inputs if segment[producer[name]] != segment[i]}
        kept |= set(operator.implementations[0].recompute_reads)
    return kept


def _needed(problem: Problem, members: Sequence[int], read: set[str], kept: set[str]) -> list[int]:
    """The operators among ``members``, a segment's, that must run again for what the backward pass reads of it."""
    wanted, again = set(read), []
    for i in reversed(members):
        operator = problem.forward[i]
        if wanted.intersection(operator.outputs):
            again.append(i)
            wanted |= set(operator.inputs) - kept
    return again
