"""Best plans as points of programs, also of those that count more than there is."""

from __future__ import annotations

import math

import numpy as np
from planner_problems import chain

from monet.planner.construction.first_plans import construct, fastest_plan, smallest_budget
from monet.planner.program.index import index_of
from monet.planner.program.windows import NO_STAGES
from monet.planner.replay import replay
from monet.planner.search.formulation import Formulation
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.search.scope import Scope, build, needed_besides
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Limits


def test_neighbourhoods_of_a_plan_that_the_program_counts_too_much_of() -> None:
    """Before its window a kept tensor counts although nothing reads it again: the plan fits, and is no point."""
    problem = chain(8)
    smallest, fastest = smallest_budget(problem), fastest_plan(problem)
    assert smallest is not None and fastest is not None
    budget_bytes = int(smallest[0] + 0.3 * (fastest.peak_bytes - smallest[0]))
    runs = construct(index_of(problem), budget_bytes, math.inf)
    best = Incumbent.fastest_within(problem, budget_bytes)
    assert runs is not None and best.offer(runs)
    scope = Scope(1, NO_STAGES)
    program = build(problem, budget_bytes, scope, needed_besides(problem, runs, scope))
    formulation = Formulation(program, solver("HIGHS"), best, 1e-6)
    model = formulation.model()
    assert formulation.point(model) is None
    begun = formulation.around(model)
    assert begun is not None and begun.start is not None and begun.violation(begun.start) == 0
    wider = np.flatnonzero(begun.arrays.upper > model.arrays.upper)
    assert set(wider) and set(wider) <= set(program.memory)
    improve(program, begun, formulation.solve, Limits(math.inf, 1e-6, NODES), formulation.offer, None)
    assert best.runs is not None and replay(problem, best.runs).peak_bytes <= budget_bytes


def test_a_point_that_does_not_fit_is_no_plan() -> None:
    problem = chain(8)
    fastest = fastest_plan(problem)
    assert fastest is not None
    best = Incumbent.fastest_within(problem, fastest.peak_bytes)
    assert best.offer(fastest.runs)
    program = build(problem, fastest.peak_bytes, Scope(None, NO_STAGES), {})
    formulation = Formulation(program, solver("HIGHS"), best, 1e-6)
    x = formulation.point(formulation.model())
    assert x is not None and formulation.offer(x)
    other = Incumbent.fastest_within(problem, fastest.peak_bytes - 1)
    assert not Formulation(program, solver("HIGHS"), other, 1e-6).offer(x) and other.runs is None
