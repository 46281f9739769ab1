"""Large-neighbourhood search: re-solve parts of the network around the incumbent.

Every column of the program belongs to a position in the forward pass. A neighbourhood is one or two contiguous
stretches of it: a round frees their columns, fixes all others to the incumbent, and lets the solver improve that. Two
stretches, because what one gives up in memory another can use. Neighbourhoods follow a fixed sequence and rounds are
limited by search nodes: the same problem gives the same rounds, unless a round reaches ``ROUND_S`` or the time runs
out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from monet.planner.program.program import Program
from monet.planner.solvers.model import Limits, Model, Solve, Tick
from monet.planner.solvers.rows import Floats

NODES = 10
"""Of a round's search tree. A round that needs more is stopped, and the next one frees less."""
ROUND_S = 6.0
"""The limit of a round whose nodes take long. Unlike ``NODES`` it depends on the machine: from a round that reaches
it on, the same problem may give other plans."""
ROUND_GAP = 1e-3
"""Relative, and at most the plan's own gap. A tenth of that gap's default, since a search is the sum of small gains."""
FIRST_WIDTH, FIRST_WIDTH_MOVING, MOST_WIDTH = 0.2, 0.06, 0.6
"""Shares of the network: what the first round frees, and what a round frees at most. To free nearly all of it would be
to solve the whole, which comes afterwards. Where the program decides on moves, clocks are always free."""
WIDER, NARROWER = 1.15, 0.7
"""Factors of the width after a round that was solved to its gap, and after one that was stopped. One step down
takes more than two steps up to undo: a round that is too narrow ends soon, one that is too wide uses up its limit."""
STALE_ROUNDS = 20
"""Rounds without a better plan that end the search: five of each kind of neighbourhood."""
SCATTERED = 1.5
"""Single operators anywhere may be this much more of the network than a stretch: few of their columns interact."""
MOST_CUTS = 8
"""Times that a neighbourhood is solved while its points break rows that the program does not have yet."""
LEAST_GAIN = 1e-6
"""Relative. A plan that is better by less may be better by the solver's tolerance only."""


def positions(program: Program) -> npt.NDArray[np.int64]:
    """For every column, the forward operator that it is about.

    A stage belongs to the earliest operator whose tensors it may read, or to that of the stage
    before it.
    """
    index = program.windows
    at = np.zeros(len(program.rows.costs), dtype=np.int64)
    about = [(c, index.producer[k]) for k, columns in program.keep.items() for c in columns]
    about += [(c, i) for (i, _), c in program.forward.items()]
    about += [(c, index.producer[k]) for (k, _), columns in program.resident.items() for c in columns]
    levels = ((k, columns) for (k, _), found in program.local.items() for _, columns in found)
    about += [(c, index.producer[k]) for k, columns in levels for c in columns]
    # After local: a level without a column of its own names the columns of the runs that read it.
    about += [(c, i) for (i, _, _), c in program.again.items()]
    about += [(c, index.producer[v]) for (v, _), c in program.make.items()]
    if program.moves is not None:
        about += [(c, made) for _, made, _, c in program.moves.writes()]
        about += [(c, index.producer[k]) for k, _, _, c in program.moves.reads()]
    here = len(index.problem.forward) - 1
    for stage, implementations in enumerate(index.runs_backward):
        here = min((index.producer[k] for k in index.reads[stage]), default=here)
        about += [(program.backward[stage, q.name], here) for q in implementations]
    for column, position in about:
        if column >= 0:
            at[column] = position
    return at


def _neighbourhoods(count: int, rng: np.random.Generator) -> Iterator[Callable[[float], npt.NDArray[np.bool_]]]:
    """Endless: a function from width (a fraction of the network) to the freed operators, as a mask over ``count``.

    In turn one neighbourhood, two anywhere, two mirrored ones, which skip connections join, and operators anywhere.
    """
    while True:
        for kind in ("one", "two", "mirrored", "scattered"):
            if kind == "scattered":
                order = rng.permutation(count)
                yield lambda width, order=order: order < width * SCATTERED * count  # type: ignore[misc]
                continue
            places = rng.random(2)
            if kind == "one":
                places = places[:1]
            elif kind == "mirrored":
                places[1] = 1 - places[0]

            def free(width: float, places: Floats = places) -> npt.NDArray[np.bool_]:
                chosen = np.zeros(count, dtype=np.bool_)
                length = max(1, round(width * count / len(places)))
                for place in places:
                    begin = round(place * (count + length)) - length
                    chosen[max(0, begin) : max(0, begin + length)] = True
                return chosen

            yield free


def improve(
    program: Program,
    model: Model,
    solve: Solve,
    limits: Limits,
    found: Callable[[Floats], bool],
    tick: Tick | None,
    seed: int = 0,
    cut: Callable[[Floats], Model | None] = lambda x: None,
    over: Callable[[], bool] = lambda: False,
) -> Floats:
    """Improves the model's feasible ``start`` until rounds stop helping, ``over`` says so, Ctrl-C ends a round or time
    is up; returns the best point.

    ``limits.nodes`` is that of a round, ``limits.time_s`` that of all rounds. ``found`` is called with every better
    point, as the solver returned it, also of a round that ``tick`` or Ctrl-C ended, and returns whether it is a plan;
    one that is none is no better. ``seed``: another one frees other neighbourhoods. ``cut``: the model with more rows
    for a point that breaks one of them, else None; such a point is no better one, and its neighbourhood is solved
    again.
    """
    at = positions(program)
    deadline = time.monotonic() + limits.time_s
    assert model.start is not None
    best, objective = model.start, float(model.arrays.cost @ model.start)
    width, stale = FIRST_WIDTH if program.moves is None else FIRST_WIDTH_MOVING, 0
    for free in _neighbourhoods(len(program.problem.forward), np.random.default_rng(seed)):
        if time.monotonic() >= deadline or stale >= STALE_ROUNDS or over():
            break
        freed = free(width)[at] | ~model.arrays.integer
        for _ in range(MOST_CUTS):
            round_model = replace(
                model,
                fixed_lower=np.where(freed, model.fixed_lower, best),
                fixed_upper=np.where(freed, model.fixed_upper, best),
                start=best,
            )
            left = max(0.0, deadline - time.monotonic())
            answer = solve(round_model, Limits(min(left, ROUND_S), min(ROUND_GAP, limits.gap), limits.nodes), tick)
            if answer.x is None or answer.objective >= objective - LEAST_GAIN * abs(objective):
                break
            if not found(answer.x):
                break
            more = cut(answer.x)
            if more is None:
                best = np.where(model.arrays.integer, np.round(answer.x), answer.x)
                objective, stale = answer.objective, -1
                break
            model = more
            if over() or answer.status in ("interrupted", "stopped"):
                break
        stale += 1
        if answer.status in ("interrupted", "stopped"):
            break
        width = min(MOST_WIDTH, width * WIDER) if answer.status == "optimal" else width * NARROWER
    return best
