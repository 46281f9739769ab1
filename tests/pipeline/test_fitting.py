"""Between the program's account of a plan and the arena it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from module_cases import CASES, case_prepared
from replaced_stages import in_both
from slow_cases import slow_but
from small_models import Residual

from monet.errors import InfeasibleBudget
from monet.models.config import load_config
from monet.models.model_loading import build_model
from monet.ops.estimating.rates import parse_rates
from monet.pipeline import attempts, fitting, planning
from monet.pipeline.attempts import Attempts
from monet.pipeline.fit import Fit, FitState
from monet.pipeline.fitting import fit_budget, smallest_placed
from monet.pipeline.meter import silent
from monet.pipeline.placement import Placement
from monet.pipeline.placement import placement as placement_of
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Preparing, prepare
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import unroll
from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.layout.load import load_over_time
from monet.planner.replay import replay
from monet.planner.search import Solving
from monet.planner.search.smallest import smallest_plan
from monet.planner.solution import Proof, Runs, Solution

RATES = parse_rates("300GFLOPS,20GB/s")  # the same plans on every machine


def test_an_interrupted_solve_is_not_begun_again_where_its_arena_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arena of a solve that ended by itself is too large, there is another."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    ended, solves = ["interrupted"], []

    def plan_variant(_: str, problem: Any, budget_bytes: int, *__: Any, **options: Any) -> Any:
        found = fastest_plan(problem)
        assert found is not None
        solves.append(budget_bytes)
        if len(solves) > 1:
            raise KeyboardInterrupt
        return replace(found, status=ended[0])

    in_both(monkeypatch, "plan_variant", plan_variant)
    for status, expected in (("interrupted", 1), ("time_limit", 2)):
        ended[0] = status
        solves.clear()
        with pytest.raises(KeyboardInterrupt):
            plan_prepared(prepared, prepared.problem.fixed_bytes + 1)  # less than any arena
        assert len(solves) == expected, status


def test_little_time_is_spent_where_no_plan_can_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    limits_s, own = [], FitState

    def begun(fit: Fit, *more: Any) -> FitState:
        limits_s.append(fit.solving.time_limit_s)
        return own(fit, *more)

    monkeypatch.setattr(fitting, "FitState", begun)
    fixed_bytes = prepared.problem.fixed_bytes
    for budget_bytes in (fixed_bytes - 1, fixed_bytes):
        with pytest.raises(InfeasibleBudget, match="smallest budget known to work"):
            plan_prepared(prepared, budget_bytes, Solving(time_limit_s=100.0))
    assert limits_s == [fitting.BELOW_FIXED_S, 100.0]


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("fits_at", [1, 2, 100])
def test_an_interrupted_plan_is_placed_quickly(fits_at: int, remembered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not fit, smaller plans are made of it, and it is placed again for longer, but not for as long as
    the time limit allows; where there is another plan, none of it."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    limits_s: list[float] = []
    tried: list[Runs] = []

    def plan_variant(_: str, problem: Any, *__: Any, **options: Any) -> Any:
        found = fastest_plan(problem)
        assert found is not None
        return replace(found, status="interrupted")

    def placement(runs: Any, lowered: Any, budget_bytes: int, time_limit_s: float) -> Placement:
        limits_s.append(time_limit_s)
        tried.append(runs)
        made = placed(runs, lowered, budget_bytes, time_limit_s)
        if len(limits_s) >= fits_at or time_limit_s == attempts.INTERRUPTED_AGAIN_S:
            return made
        return replace(made, layout=replace(made.layout, arena_bytes=budget_bytes - lowered.problem.fixed_bytes + 1))

    placed = placement_of
    in_both(monkeypatch, "plan_variant", plan_variant)
    in_both(monkeypatch, "placement", placement)
    found = fastest_plan(prepared.problem)
    assert found is not None
    known = (found, placed(found.runs, prepared.lowered, found.peak_bytes, 1.0)) if remembered else None
    monkeypatch.setattr(fitting, "recall", lambda *_: known)
    monkeypatch.setattr(attempts, "INTERRUPTED_S", 60.0)  # enough, whatever else the machine does
    monkeypatch.setattr(attempts, "INTERRUPTED_AGAIN_S", 600.0)
    result = plan_prepared(prepared, "100%", Solving(time_limit_s=5000.0))
    assert result.solution.status == "interrupted"
    assert limits_s[0] == attempts.INTERRUPTED_S and set(limits_s[1:-1]) <= {attempts.INTERRUPTED_S}
    assert len(limits_s) == 1 if remembered else len(limits_s) in {1: [1], 2: [2], 100: range(3, 7)}[fits_at]
    first, last = tried[0], tried[-1]
    assert (first == last) == (remembered or fits_at != 2)
    assert remembered or result.solution.runs == last


@pytest.mark.parametrize("variant", ["block", "monet"])
def test_no_arena_fits_and_no_plan_for_less(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the arena of the variant's own smallest plan."""
    lowered = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES)).lowered
    found = fastest_plan(lowered.problem)
    assert found is not None
    targets: list[int] = []

    def plan_variant(name: str, problem: Any, target_bytes: int, *_: Any, **__: Any) -> Solution:
        assert name == variant
        targets.append(target_bytes)
        if target_bytes < found.peak_bytes:
            raise InfeasibleBudget("none fits", found.peak_bytes, smallest_plan=found)
        return found

    def placement(runs: Runs, *_: Any) -> Placement:
        made = placement_of(runs, lowered, found.peak_bytes, 1.0)
        arena_bytes = found.peak_bytes - lowered.problem.fixed_bytes + 64
        return replace(made, layout=replace(made.layout, arena_bytes=arena_bytes))

    in_both(monkeypatch, "plan_variant", plan_variant)
    in_both(monkeypatch, "placement", placement)
    monkeypatch.setattr(fitting, "along", lambda *_: None)
    monkeypatch.setattr(fitting, "orders_of", lambda fit: [fit.lowered])
    with pytest.raises(InfeasibleBudget) as caught:
        fit_budget(Fit(lowered, found.peak_bytes, variant, Solving(time_limit_s=20.0), remembers=False))
    assert caught.value.smallest_bytes == found.peak_bytes + 64
    assert len(targets) >= 2


def test_ctrl_c_in_the_second_order_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the least memory, too, where the plan is the first order's."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    least = smallest_plan(prepared.problem)
    orders: list[Any] = []

    def asked(problem: Any, *_: Any, **__: Any) -> Any:
        orders.append(problem)
        return least if len(orders) == 1 else replace(least, solution=replace(least.solution, status="interrupted"))

    monkeypatch.setattr(planning, "orders_of", lambda fit: [fit.lowered, fit.lowered])
    monkeypatch.setattr(planning, "smallest_plan", asked)
    result = plan_smallest(prepared, None, Solving(time_limit_s=5.0))
    assert len(orders) == 2 and result.solution.status == "interrupted"


@pytest.mark.parametrize("when", ["solving", "placing"])
@pytest.mark.parametrize("remembered", [False, True])
def test_ctrl_c_keeps_a_plan_that_fits(when: str, remembered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES)).lowered
    found = fastest_plan(lowered.problem)
    assert found is not None
    placed = found, placement_of(found.runs, lowered, found.peak_bytes, 1.0)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    in_both(monkeypatch, "plan_variant", interrupted if when == "solving" else lambda *_, **__: found)
    in_both(monkeypatch, "placement", interrupted)
    monkeypatch.setattr(fitting, "recall", lambda *_: placed if remembered else None)
    fit = Fit(lowered, found.peak_bytes)
    if remembered:
        assert fit_budget(fit)[0].status == "interrupted"
    else:
        with pytest.raises(KeyboardInterrupt):
            fit_budget(fit)


def test_ctrl_c_after_the_least_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the plan is the one of before."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    found = fastest_plan(prepared.problem)
    assert found is not None
    slower = replace(found, objective_s=found.objective_s * 100, status="interrupted")
    placed = placement_of(found.runs, prepared.lowered, found.peak_bytes, 1.0)
    monkeypatch.setattr(planning, "fit_budget", lambda *_: (slower, placed))
    result = plan_smallest(prepared, None, Solving(time_limit_s=5.0))
    assert result.solution.status == "interrupted" and result.solution.objective_s < slower.objective_s


@pytest.mark.parametrize("ends", ["well", "too large", "interrupted"])
@pytest.mark.parametrize("remembered", [False, True])
def test_the_smallest_plans_order_is_searched_in(ends: str, remembered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the smallest plan fits, once it is ordered: a faster one may fit along its order, too."""
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    lowered = prepare(torch.nn.Sequential(*layers), (torch.randn(256, 64),), {}).lowered
    fast, small = fastest_plan(lowered.problem), smallest_plan(lowered.problem).solution
    assert fast is not None and fast.objective_s < small.objective_s
    budget_bytes = small.peak_bytes - 1024
    names = []

    def plan_variant(_: str, problem: Any, target_bytes: int, *__: Any, **options: Any) -> Solution:
        names.append(problem.name)
        if problem.name != "along":
            raise InfeasibleBudget("none fits", small.peak_bytes, smallest_plan=small)
        return replace(small, status="interrupted") if ends == "interrupted" else fast

    def placement(runs: Runs, *_: Any) -> Placement:
        made = placement_of(runs, lowered, budget_bytes, 1.0)
        more = 1 if ends == "too large" and runs != small.runs else 0
        arena_bytes = budget_bytes - lowered.problem.fixed_bytes + more
        return replace(made, layout=replace(made.layout, arena_bytes=arena_bytes))

    def along(_: object, runs: Runs, __: object) -> tuple[Any, Runs]:
        return replace(lowered, problem=replace(lowered.problem, name="along")), runs

    in_both(monkeypatch, "plan_variant", plan_variant)
    in_both(monkeypatch, "placement", placement)
    monkeypatch.setattr(fitting, "along", along)
    known = (small, placement(small.runs)) if remembered else None
    monkeypatch.setattr(fitting, "recall", lambda *_: known)
    monkeypatch.setattr(fitting, "remember", lambda *_: None)
    found, placed = fit_budget(Fit(lowered, budget_bytes, solving=Solving(time_limit_s=50.0)))
    assert found.runs == (fast if ends == "well" else small).runs
    assert found.status == {"well": fast.status, "too large": "smallest_known"}.get(ends, "interrupted")
    assert lowered.problem.fixed_bytes + placed.layout.arena_bytes <= budget_bytes
    assert "along" in names


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_programs_account_is_what_the_buffers_need(case: str) -> None:
    """In the captured order no buffers need more than the program counts, also of operators of several requests."""
    prepared = case_prepared(case, exact=False)
    found = fastest_plan(prepared.problem)
    assert found is not None
    buffers = unroll(calls(found.runs, prepared.lowered), prepared.lowered).buffers
    alive = np.array([(b.begin, b.end, b.bytes) for b in buffers], np.int64)
    _, load = load_over_time(*alive.T)
    assert prepared.problem.fixed_bytes + int(load.max()) <= found.peak_bytes


@pytest.mark.parametrize("case", sorted(CASES))
def test_everything_kept_always_fits(case: str) -> None:
    prepared = case_prepared(case, exact=False)
    result = plan_prepared(prepared, "100%", Solving(time_limit_s=20.0))
    assert result.plan.peak_bytes <= prepared.full_bytes


def test_a_later_solve_keeps_what_an_earlier_one_has_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound for more memory holds for less, one for less says nothing of more, and each keeps to its plans."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {}, Preparing(costs=RATES))
    found = fastest_plan(prepared.problem)
    assert found is not None
    cost_s = found.objective_s
    proofs: Iterator[Proof | None] = iter([])

    def plan_variant(*_: Any, **__: Any) -> Any:
        return replace(found, proof=next(proofs))

    in_both(monkeypatch, "plan_variant", plan_variant)

    def told(*solves: tuple[int, Proof | None]) -> Proof | None:
        nonlocal proofs
        state = FitState(Fit(prepared.lowered, 10**9), silent)
        attempts = Attempts(state, prepared.lowered, 10.0)
        proofs = iter([proof for _, proof in solves])
        return [attempts.solve(target).proof for target, _ in solves][-1]

    full, better = Proof(0.5 * cost_s, "full"), Proof(0.7 * cost_s, "window 16")
    assert told((100, full), (90, None)) == full
    assert told((100, full), (110, None)) is None
    assert told((100, full), (90, better)) == better
    assert told((100, better), (90, full)) == better
    assert told((100, full), (90, Proof(0.4 * cost_s, "full"))) == full
    assert told((100, Proof(2 * cost_s, "window 16")), (90, None)) is None  # of other plans than this one
    assert told((100, Proof(2 * cost_s, "full")), (90, None)) == Proof(cost_s, "full")  # another order's


@pytest.mark.parametrize("case", slow_but(["residual", "awkward"], ["residual", "transformer", "awkward"]))
def test_what_the_budget_has_room_for_is_kept(case: str) -> None:
    """Of a search that ends far from what it could prove; and the summary says what one recomputation less needs."""
    prepared = case_prepared(case, exact=False)
    smallest_bytes = plan_smallest(prepared, solving=Solving(time_limit_s=5.0)).plan.peak_bytes
    for share in (0.2, 0.5, 0.8):
        budget_bytes = int(smallest_bytes + share * (prepared.eager.peak_bytes - smallest_bytes))
        result = plan_prepared(prepared, budget_bytes, Solving(time_limit_s=60.0, gap=0.5))
        needed = result.summary.next_peak_bytes
        assert result.plan.peak_bytes <= budget_bytes
        assert needed is None or needed > budget_bytes


def test_a_plan_that_fills_less_is_placed_before_another_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = case_prepared("transformer", exact=False)
    lowered = prepared.lowered
    found, thrifty = fastest_plan(lowered.problem), smallest_budget(lowered.problem)
    assert found is not None and thrifty is not None and thrifty[0] < 0.9 * found.peak_bytes
    solved: list[int] = []

    def plan_variant(name: str, problem: Any, target_bytes: int, *_: Any, **__: Any) -> Solution:
        solved.append(target_bytes)
        if target_bytes < found.peak_bytes:
            raise InfeasibleBudget("none fits", found.peak_bytes, smallest_plan=found)
        return replace(found, unfilled=thrifty[1].runs)

    def placement(runs: Runs, *_: Any) -> Placement:
        made = placement_of(runs, lowered, found.peak_bytes, 1.0)
        counted = replay(lowered.problem, runs).peak_bytes - lowered.problem.fixed_bytes
        return replace(made, layout=replace(made.layout, arena_bytes=counted * 102 // 100))

    in_both(monkeypatch, "plan_variant", plan_variant)
    in_both(monkeypatch, "placement", placement)
    monkeypatch.setattr(fitting, "orders_of", lambda fit: [fit.lowered])
    monkeypatch.setattr(fitting, "along", lambda *_: None)
    solution, placed = fit_budget(Fit(lowered, found.peak_bytes, "monet", Solving(time_limit_s=20.0), remembers=False))
    assert solved[0] == found.peak_bytes and solution.unfilled is None
    assert placed.layout.arena_bytes + lowered.problem.fixed_bytes <= found.peak_bytes
    assert thrifty[0] <= solution.peak_bytes < found.peak_bytes
    assert found.objective_s < solution.objective_s < thrifty[1].objective_s


def test_where_no_filled_plan_fits_the_one_that_it_was_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = case_prepared("transformer", exact=False).lowered
    found, thrifty = fastest_plan(lowered.problem), smallest_budget(lowered.problem)
    assert found is not None and thrifty is not None
    placed: list[Runs] = []

    def plan_variant(*_: Any, **__: Any) -> Solution:
        return replace(found, unfilled=thrifty[1].runs)

    def placement(runs: Runs, *_: Any) -> Placement:
        placed.append(runs)
        made = placement_of(runs, lowered, found.peak_bytes, 1.0)
        excess_bytes = 0 if runs == thrifty[1].runs else 1 << 10
        return replace(made, layout=replace(made.layout, arena_bytes=room_bytes + excess_bytes))

    room_bytes = found.peak_bytes - lowered.problem.fixed_bytes
    in_both(monkeypatch, "plan_variant", plan_variant)
    in_both(monkeypatch, "placement", placement)
    monkeypatch.setattr(fitting, "orders_of", lambda fit: [fit.lowered])
    fit = Fit(lowered, found.peak_bytes, "monet", Solving(time_limit_s=20.0), remembers=False)
    Attempts(state := FitState(fit, silent), lowered, 10.0).run()
    assert state.best is not None and state.best[0].runs == thrifty[1].runs
    assert placed[0] == found.runs and placed.index(thrifty[1].runs) == 1 + len(attempts.LESS_FILLED)


def test_the_smallest_arena_is_searched_for_not_only_the_first_one_taken() -> None:
    """MNASNet's fastest plan: the heuristics need 1.2 % more than its load."""
    model = build_model(load_config("mnasnet.yaml")).train()
    prepared = prepare(model, (torch.randn(2, 3, 96, 96),), {}, Preparing(costs=RATES))
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    found = smallest_placed([fastest], prepared.lowered, 60.0)[1].layout
    assert found.arena_bytes == found.bound_bytes
