"""The smallest budget against exhaustion, and what a bound on the full program promises."""

from __future__ import annotations

import _thread
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_front import front, tight_problems, two_orders
from planner_problems import chain, problems
from random_examples import examples

from monet.errors import InfeasibleBudget
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.search import Solving, exact, plan_problem, proof, smallest_plan
from monet.planner.search.least_peak import keep_everything_bytes
from monet.planner.search.search import Search
from monet.planner.search.smallest import SmallestBudget

options = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def check(problem: Problem, found: SmallestBudget, most_s: float = math.inf) -> None:
    plan = found.solution
    cost = replay(problem, plan.runs)
    assert (cost.peak_bytes, cost.objective_s) == (plan.peak_bytes, plan.objective_s)
    assert plan.objective_s <= most_s
    assert problem.fixed_bytes <= found.bound_bytes <= plan.peak_bytes
    assert found.gap == pytest.approx((plan.peak_bytes - found.bound_bytes) / plan.peak_bytes)
    assert plan.bound_s == 0.0


@settings(options, max_examples=examples(60))
@given(problem=st.one_of(problems(), tight_problems()), share=st.floats(0.0, 1.0))
def test_the_least_peak_is_the_exhaustive_one(problem: Problem, share: float) -> None:
    points = front(problem, [True] * len(problem.backward))
    if not points:
        return
    found = smallest_plan(problem, solving=Solving(gap=0.0))
    check(problem, found)
    assert found.solution.status == "optimal" and found.scope == "full"
    assert found.solution.peak_bytes == found.bound_bytes == points[0].peak_bytes
    # At most as slow as one plan of the front, or between two of them.
    fastest, slowest = points[-1].objective_s, points[0].objective_s
    most_s = fastest + share * (slowest - fastest) + 1e-9
    limited = smallest_plan(problem, most_s, Solving(gap=0.0))
    check(problem, limited, most_s)
    expected = next(point.peak_bytes for point in points if point.objective_s <= most_s)
    assert limited.solution.peak_bytes == limited.bound_bytes == expected
    with pytest.raises(InfeasibleBudget, match="takes at most"):
        smallest_plan(problem, fastest * 0.99, Solving(gap=0.0))


@settings(options, max_examples=examples(30))
@given(problem=problems(operators=5, pinned=True))
def test_a_bound_is_never_above_the_peak(problem: Problem) -> None:
    known = smallest_budget(problem)
    if known is None:
        return
    for window in (1, None):
        found = smallest_plan(problem, solving=Solving(window=window))
        check(problem, found)
        assert found.solution.peak_bytes <= known[0] <= keep_everything_bytes(problem)


@pytest.mark.slow
def test_less_overhead_costs_more_memory() -> None:
    problem = chain(8)
    fastest = plan_problem(problem, keep_everything_bytes(problem), Solving(gap=0.0)).objective_s
    limits = [fastest * (1 + share) for share in (0.0, 0.1, 0.3)]
    peaks = [smallest_plan(problem, limit, Solving(time_limit_s=8.0)).solution.peak_bytes for limit in limits]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1] >= smallest_plan(problem, solving=Solving(time_limit_s=8.0)).bound_bytes


def test_a_start_is_never_lost() -> None:
    problem = two_orders()
    start = smallest_plan(problem, solving=Solving(gap=0.0)).solution
    assert start.peak_bytes == 20
    # Within windows of one stage alone, b can only be made beside a.
    assert smallest_plan(problem, solving=Solving(window=1), start=start.runs).solution.peak_bytes == 20


def test_progress_is_told_bytes() -> None:
    problem = chain(14)
    told: list[float] = []

    def progress(incumbent: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        told.extend(value for value in (incumbent, bound) if value is not None)

    found = smallest_plan(problem, solving=Solving(time_limit_s=5.0), progress=progress)
    assert told and all(problem.fixed_bytes * 0.5 <= value <= keep_everything_bytes(problem) for value in told)
    assert max(told) >= found.solution.peak_bytes


# Proofs.


def tight(length: int, extra: int = 10) -> tuple[Problem, int]:
    problem = chain(length)
    known = smallest_budget(problem)
    assert known is not None
    return problem, known[0] + extra


def test_a_proof_bounds_the_full_program() -> None:
    problem, budget = tight(10, 2)
    full = plan_problem(problem, budget, Solving(gap=0.0))
    assert full.bound_scope == "full"
    narrow = plan_problem(problem, budget, Solving(window=1, gap=0.0))
    assert narrow.bound_scope.startswith("window 1") and narrow.objective_s > full.objective_s
    proven = plan_problem(problem, budget, Solving(window=1, gap=0.0, prove=True))
    # The windowed program's own bound is above the best plan of the full one, which the proof finds on its way.
    assert narrow.bound_s > full.objective_s
    assert proven.bound_scope == "full" and proven.status == "optimal"
    assert proven.objective_s == pytest.approx(full.objective_s) == pytest.approx(proven.bound_s, rel=1e-6)


@pytest.mark.parametrize(
    ("small", "first_window", "asked"),
    [(10_000, 2, [(2, True), (10, False)]), (0, 2, [(2, True), (4, True), (8, True), (10, False)]), (0, 3, None)],
)
@pytest.mark.sampled(3)
def test_proofs_get_tighter(
    monkeypatch: pytest.MonkeyPatch, small: int, first_window: int, asked: list[tuple[int, bool]] | None
) -> None:
    """Relaxations of twice the window each, and at last the full program; at once where that is small."""
    problem, budget = tight(10, 2)
    full = plan_problem(problem, budget, Solving(gap=0.0))
    seen: list[tuple[int, bool]] = []
    bounds: list[float] = []
    bound_beside = Search.bound_beside

    def noting(search: Search, planned: Search, *, relaxed: bool) -> str:
        window = search.formulation.program.windows.window
        seen.append((len(problem.backward) if window is None else window, relaxed))
        status = bound_beside(search, planned, relaxed=relaxed)
        bounds.append(search.program_bound)
        return status

    monkeypatch.setattr(proof, "PROOF_SMALL", small)
    monkeypatch.setattr(proof, "PROOF_WINDOW", first_window)
    monkeypatch.setattr(Search, "bound_beside", noting)
    plan_problem(problem, budget, Solving(window=1, gap=0.0, prove=True))
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1] <= full.objective_s * (1 + 1e-6)
    if asked is not None:
        assert seen == asked
    else:
        assert seen[-1] == (10, False)


@pytest.mark.slow
def test_enough_stops_early() -> None:
    problem, budget = tight(8)
    best = plan_problem(problem, budget, Solving(gap=0.0)).objective_s
    easy = plan_problem(problem, budget, Solving(gap=0.0), enough_s=math.inf)
    assert easy.status == "good_enough" and easy.columns == 0
    assert easy.peak_bytes <= budget
    enough = plan_problem(problem, budget, Solving(gap=0.0), enough_s=best * 1.02)
    assert enough.status == "good_enough" and enough.objective_s <= best * 1.02
    too_much = plan_problem(problem, budget, Solving(gap=0.0), enough_s=best * 0.5)
    assert too_much.status == "good_enough"
    assert best * 0.5 < too_much.bound_s <= best * (1 + 1e-9) and too_much.objective_s >= best * (1 - 1e-9)


def test_a_start_that_is_close_is_no_interruption() -> None:
    """Before anything is proven, every plan is within a gap of all that it takes."""
    problem, budget = tight(8)
    start = plan_problem(problem, budget, Solving(gap=0.0))
    found = plan_problem(problem, budget, Solving(gap=1.0), start=start.runs)
    assert found.status == "optimal" and found.objective_s <= start.objective_s * (1 + 1e-9)


@pytest.mark.slow
def test_interrupting_the_proof_keeps_the_plan() -> None:
    problem, budget = tight(60, 40)
    plan_s = 4.0
    first = plan_problem(problem, budget, Solving(gap=0.0, time_limit_s=plan_s))

    def progress(incumbent: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        if proving:
            raise KeyboardInterrupt

    proving: list[bool] = []
    prove = proof.bound_full_program

    def noting(*arguments: object) -> tuple[float, str]:
        proving.append(True)
        return prove(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "bound_full_program", noting)
        plan = plan_problem(problem, budget, Solving(gap=0.0, time_limit_s=plan_s, prove=True), progress=progress)
    assert proving == [True]
    # Stopped before it was about anything, the proof leaves the bound of the search in its place.
    assert plan.status == "interrupted" and plan.bound_scope != "none"
    assert replay(problem, plan.runs).peak_bytes == plan.peak_bytes <= budget
    assert plan.bound_s <= plan.objective_s <= first.objective_s * 1.05


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.slow
def test_ctrl_c_keeps_the_smallest_plan_so_far() -> None:
    problem = chain(60)
    fastest = plan_problem(problem, keep_everything_bytes(problem)).objective_s

    def interrupted(best: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        if best is not None:
            _thread.interrupt_main()

    found = smallest_plan(problem, fastest * 1.1, Solving(gap=0.0, time_limit_s=60.0), progress=interrupted)
    assert found.solution.status == "interrupted"
    check(problem, found, fastest * 1.1)
