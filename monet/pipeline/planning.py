"""From a prepared step and a budget to a verified plan."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace

from monet.base.amounts import ByteBudget, parse_budget, refusals_of
from monet.errors import InfeasibleBudget, SolverError
from monet.pipeline.carried_state import (
    StateMoves,
    chosen_moves,
    least_copied_s,
    movable_state,
    state_choices,
    with_carried,
)
from monet.pipeline.fit import SHARES, Fit
from monet.pipeline.fitting import fit_budget, orders_of, smallest_placed
from monet.pipeline.known_plans import Placed, remember
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter, silent
from monet.pipeline.orders import in_order, order_of
from monet.pipeline.placement import Placement
from monet.pipeline.preparation import Prepared
from monet.pipeline.summary import Summary, plan_summary
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import Problem
from monet.planner.schedules import MOVING, as_planned
from monet.planner.search import Solving, smallest_plan
from monet.planner.search.smallest import SmallestBudget
from monet.planner.solution import Proof, Solution
from monet.plans.plan import Plan
from monet.plans.verifier import verify


@dataclass(frozen=True)
class PlanResult:
    """``summary``: what ``monet plan --json`` writes; docs/summary-format.md describes its fields. ``problem``: the
    step along the order that the solution's runs have."""

    plan: Plan
    summary: Summary
    solution: Solution
    problem: Problem


def plan_prepared(
    prepared: Prepared,
    budget: ByteBudget | int | str,
    solving: Solving | None = None,
    *,
    variant: str = MONET,
    meter: Meter = silent,
    reuse: bool = False,
) -> PlanResult:
    """Plan a prepared step for a budget, lay it out and verify it.

    ``solving``: None is ``Solving()``. ``variant``: a name of ``planner.schedules.VARIANTS``: the whole program, a
    part of it, or a baseline. ``meter``: who is told how far each solve is. ``reuse``: what an earlier search found
    that was asked the same, by the same code, and came within the gap, is not looked for again; its seconds are told.

    Raises ``ConfigError``, ``InfeasibleBudget`` and ``SolverError``; ``KeyboardInterrupt`` on Ctrl-C before there is a
    plan that fits.
    """
    asked = parse_budget(budget)
    budget_bytes = asked.resolve(prepared.full_bytes)
    with refusals_of(asked, prepared.full_bytes):
        return _within(prepared, budget_bytes, variant, solving or Solving(), meter, reuse)


def _within(
    prepared: Prepared, budget_bytes: int, variant: str, solving: Solving, meter: Meter, reuse: bool
) -> PlanResult:
    prepared = _for_variant(prepared, variant)
    if variant not in MOVING or not movable_state(prepared.lowered):
        fit = Fit(prepared.lowered, budget_bytes, variant, solving, remembers=prepared.remembers, reuses=reuse)
        return plan_result(prepared, budget_bytes, *fit_budget(fit, meter))
    return _with_best_state(prepared, budget_bytes, variant, solving, meter, reuse)


def _with_best_state(
    prepared: Prepared, budget_bytes: int, variant: str, solving: Solving, meter: Meter, reuse: bool
) -> PlanResult:
    """The fastest of the plans that each choice of state to move leaves: none, what the program chooses, and those that
    are always tried. The time limit is for all of them. None of the later ones is tried where one is as fast as if
    there were no budget, or near enough to a bound on every plan."""
    deadline_s = time.monotonic() + solving.time_limit_s
    limited = replace(solving, time_limit_s=SHARES.state * solving.time_limit_s)
    chosen, bound_s = chosen_moves(prepared.lowered, budget_bytes, limited)
    choices = dict.fromkeys([StateMoves(), *chosen, *state_choices(prepared.lowered)])
    each = [replace(prepared, lowered=with_carried(prepared.lowered, moves)) for moves in choices]
    # What stays in any plan is too much: no need to look for the smallest one, unless there is no other choice.
    candidates = [tried for tried in each if tried.problem.fixed_bytes <= budget_bytes] or each
    best: tuple[Prepared, Placed] | None = None
    refused: InfeasibleBudget | None = None
    interrupted = False
    fastest = fastest_plan(prepared.problem)
    for number, tried in enumerate(candidates):
        left_s = max(SHARES.least * solving.time_limit_s, deadline_s - time.monotonic())
        limited = replace(solving, time_limit_s=left_s / (len(candidates) - number))
        try:
            fit = Fit(tried.lowered, budget_bytes, variant, limited, remembers=prepared.remembers, reuses=reuse)
            placed = fit_budget(fit, meter)
        except InfeasibleBudget as error:
            least = error.smallest_bytes
            if refused is None or (least is not None and least < (refused.smallest_bytes or least + 1)):
                refused = error
            continue
        except KeyboardInterrupt:
            if best is None:
                raise
            interrupted = True
            break
        interrupted = placed[0].status == "interrupted"
        if best is None or placed[0].objective_s < best[1][0].objective_s:
            best = tried, placed
        least_s = max(bound_s, 0.0 if fastest is None else fastest.objective_s)
        if best[1][0].objective_s <= least_s * (1 + solving.gap) or interrupted:
            break
    if best is None:
        assert refused is not None
        raise refused
    tried, (solution, placement) = best
    if interrupted:
        solution = replace(solution, status="interrupted")
    # Proven for the share of the channel that its state leaves; with another one there might be a better plan.
    shared = tried.problem.second is not None and tried.problem.second.taken > 0
    proof = _of_this_state(None if shared else solution.proof, tried.lowered, solution.objective_s)
    near_s = solution.objective_s * (1 - solving.gap)
    if bound_s > 0 and bound_s >= min(near_s, 0.0 if proof is None else proof.bound_s):
        proof = Proof(min(bound_s, solution.objective_s), "full")
    solution = replace(solution, proof=proof)
    if shared and solution.status == "optimal":
        solution = replace(solution, status="time_limit")
    if solution.status == "time_limit" and solution.gap <= solving.gap:
        solution = replace(solution, status="optimal")
    return plan_result(tried, budget_bytes, solution, placement)


def _of_this_state(proof: Proof | None, lowered: Lowered, objective_s: float) -> Proof | None:
    """What a proof is about does not choose which state is moved; what that takes the channel is a bound, too."""
    least_s = min(least_copied_s(lowered), objective_s)
    if proof is None or proof.bound_s < least_s:
        proof = Proof(least_s, "full") if least_s > 0 else proof
    if proof is None:
        return None
    which = "this state" if lowered.carried else "no state"
    scope = "every plan" if proof.scope == "full" else f"{proof.scope}, a plan"
    return replace(proof, scope=f"{scope} that moves {which}")


def _for_variant(prepared: Prepared, variant: str) -> Prepared:
    """With the second memory used as the variant does, or without one."""
    problem = as_planned(prepared.problem, variant)
    environment = dict(prepared.environment)
    if problem.second is None:
        environment.pop("second_memory", None)
    else:
        environment["second_memory"] = {**environment["second_memory"], "mode": problem.second.mode}
    return replace(prepared, lowered=replace(prepared.lowered, problem=problem), environment=environment)


def plan_smallest(
    prepared: Prepared,
    max_overhead: float | None = None,
    solving: Solving | None = None,
    *,
    variant: str = MONET,
    meter: Meter = silent,
) -> PlanResult:
    """The fastest plan found within the gap of the least memory found; its budget is what it needs.

    ``max_overhead``: predicted seconds beyond eager's, relative (0.1: 10 %); None: any. The bound on memory is
    ``summary.bound_bytes``. ``solving.time_limit_s``: for each of the two searches; ``solving.prove`` is not heeded.
    ``variant``: the whole program, with moves or without.
    """
    solving = replace(solving or Solving(), prove=False)
    most_s = None if max_overhead is None else prepared.eager_s * (1.0 + max_overhead)
    prepared = _for_variant(prepared, variant)
    least, placed = _smallest(prepared, most_s, solving, meter)
    if prepared.remembers:
        remember(prepared.lowered, variant, placed)  # a budget of its bytes works from now on
    if least.solution.status != "interrupted":
        # Plans of least memory run nearly everything again, most of it for nothing.
        placed = _faster(prepared, placed, variant, solving, meter)
    budget_bytes = prepared.problem.fixed_bytes + placed[1].layout.arena_bytes
    result = plan_result(prepared, budget_bytes, *placed)
    # Another order, or a step of several requests, which are laid out as they come, can need less than the program.
    bound_bytes = min(least.bound_bytes, budget_bytes)
    gap_bytes = (budget_bytes - bound_bytes) / budget_bytes
    summary = replace(result.summary, bound_s=None, gap=gap_bytes, bound_bytes=bound_bytes, bound_scope=least.scope)
    return replace(result, summary=summary)


def _smallest(
    prepared: Prepared, most_s: float | None, solving: Solving, meter: Meter
) -> tuple[SmallestBudget, Placed]:
    """The plan of the smallest arena of those that are found along the captured order and along the best one of keeping
    everything, with the search that found it."""
    orders = orders_of(Fit(prepared.lowered, sys.maxsize, solving=solving))
    found: list[tuple[SmallestBudget, Placed]] = []
    interrupted = False
    for lowered in orders:
        problem = restrict(lowered.problem, MONET)
        limited = replace(solving, time_limit_s=solving.time_limit_s / len(orders))
        try:
            with meter(limited.time_limit_s, unit="bytes") as progress:
                least = smallest_plan(problem, most_s, limited, progress=progress)
            # The program counts one order. In another one a plan that recomputes nothing can be the smaller.
            fastest = fastest_plan(problem)
            if fastest is not None and most_s is not None and fastest.objective_s > most_s:
                fastest = None
            found.append((least, smallest_placed([least.solution, fastest], lowered)))
        except (InfeasibleBudget, SolverError):
            if lowered is orders[-1] and not found:
                raise
            continue
        except KeyboardInterrupt:
            if not found:
                raise
            interrupted = True
        interrupted = interrupted or found[-1][0].solution.status == "interrupted"
        if interrupted:
            break
    least, (solution, placed) = min(found, key=lambda each: each[1][1].layout.arena_bytes)
    if interrupted:
        least = replace(least, solution=replace(least.solution, status="interrupted"))
        solution = replace(solution, status="interrupted")
    return least, (solution, placed)


def _faster(prepared: Prepared, smallest: Placed, variant: str, solving: Solving, meter: Meter) -> Placed:
    """The fastest plan found within the gap of the memory of ``smallest``; its status stays that of the search for
    memory, unless this one is interrupted."""
    solution, placed = smallest
    budget_bytes = int((prepared.problem.fixed_bytes + placed.layout.arena_bytes) * (1 + solving.gap))
    start = solution.runs if solution.peak_bytes <= budget_bytes else None
    try:
        fit = Fit(prepared.lowered, budget_bytes, variant, solving, start, prepared.remembers)
        faster, other = fit_budget(fit, meter)
    except InfeasibleBudget:
        return smallest
    except KeyboardInterrupt:
        return replace(solution, status="interrupted"), placed
    status = faster.status if faster.status == "interrupted" else solution.status
    if faster.objective_s >= solution.objective_s:
        return replace(solution, status=status), placed
    return replace(faster, status=status), other


def plan_result(prepared: Prepared, budget_bytes: int, solution: Solution, placed: Placement) -> PlanResult:
    """The plan of a solution that is placed, verified."""
    lowered = in_order(prepared.lowered, order_of(solution.runs))
    plan = Plan(
        budget_bytes=budget_bytes,
        arena_bytes=placed.layout.arena_bytes,
        arena_bound_bytes=placed.layout.bound_bytes,
        fixed_bytes=prepared.problem.fixed_bytes,
        fixed=prepared.lowered.fixed,
        steps=placed.unrolled.steps,
        buffers=placed.buffers,
        second_bytes=placed.unrolled.second_bytes,
        model=prepared.model,
        environment=prepared.environment,
        solver={
            "status": solution.status,
            "objective_s": solution.objective_s,
            "bound_s": solution.bound_s,
            "gap": solution.gap,
            "bound_scope": solution.bound_scope,
            "baseline_s": prepared.eager_s,
            **({"eager_memory_s": prepared.eager_memory_s} if prepared.eager_memory_s else {}),
            "baseline_peak_bytes": prepared.eager.peak_bytes,
            "eager_peak_bytes": prepared.eager_peak_bytes,
            "order": placed.ordered.method,
            "order_peak_bytes": placed.ordered.peak_bytes,
            "order_bound_bytes": placed.ordered.bound_bytes,
            "layout": placed.layout.method,
        },
    )
    verify(plan)
    return PlanResult(plan, plan_summary(plan, solution, lowered, placed.traffic), solution, lowered.problem)
