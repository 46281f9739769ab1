"""Another order of a step's operators, and the planner's problem along it.

The 0-1 program counts memory along the order of its problem. Along the captured order it counts too much: what a plan
needs is known only once its runs are ordered (``placement.py``), and a plan that would fit then is not found. So a step
is put in order before it is lowered, first by the best order of keeping everything::

    captured ──► ordered ──► lowered ──► searched ──► placed

A plan's own order is another one to search in: there the program counts what the plan's arena needs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from monet.base.graph import Operator, operator_inputs
from monet.errors import InvalidPlan
from monet.ops.catalogue import Catalogue, Named
from monet.ops.update_order import along_names, late_updates
from monet.pipeline.lowering import Lowered, lower
from monet.pipeline.run_graph import reorder
from monet.pipeline.schedule import calls
from monet.planner.ablation import restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.solution import Runs, Solution, Stage
from monet.plans.format import FREED, KEPT, PlanStep

logger = logging.getLogger(__name__)

LEAST_SAVING = 0.002
"""Of the captured order's bytes: an order that saves less, of keeping everything and of the least that any plan needs,
is not searched in. A layout leaves gaps of that size."""


@dataclass(frozen=True, slots=True)
class Order:
    """Names of the operators of each pass that are no views."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]


def order_of(runs: Runs) -> Order:
    """The order that a plan's problem has."""
    return Order(tuple(run.operator for run in runs.forward), tuple(stage.backward for stage in runs.stages))


def order_of_problem(problem: Problem) -> Order:
    """The order that its plans have."""
    return Order(tuple(o.id for o in problem.forward), tuple(o.id for o in problem.backward))


def in_order(lowered: Lowered, order: Order) -> Lowered:
    """The step along ``order``, which its data and ``run_graph`` must allow. An operator that overwrites what another
    one reads later in this order is not offered."""
    problem = lowered.problem
    if order == order_of_problem(problem):
        return lowered
    assert not lowered.carried, "copies of state are timed along the captured order"
    offers = lowered.catalogue
    graph = replace(
        offers.graph,
        forward=along_names(offers.graph.forward, order.forward),
        backward=along_names(offers.graph.backward, order.backward),
    )
    first, second = _last_readers(offers, graph.forward), _last_readers(offers, graph.backward)
    offers = replace(
        offers,
        graph=graph,
        forward={name: _offered(offers, name, named, first) for name, named in offers.forward.items()},
        backward={name: _offered(offers, name, named, second) for name, named in offers.backward.items()},
    )
    kept = FREED if lowered.leaving else KEPT
    again = lower(offers, lowered.profile, name=problem.name, gradients=kept, eager=lowered.eager)
    ordered = replace(again.problem, fixed_bytes=problem.fixed_bytes, second=problem.second)
    return replace(again, problem=ordered, fixed=lowered.fixed)


@dataclass(frozen=True, slots=True)
class FirstOrder:
    """A step along one order, with the least that any plan needs in it and what the fastest one does."""

    lowered: Lowered
    least_bytes: int
    fastest_bytes: int

    @classmethod
    def of(cls, lowered: Lowered, fastest: Solution) -> FirstOrder:
        return cls(lowered, floor_bytes(lowered.problem), fastest.peak_bytes)


def first_orders(lowered: Lowered, variant: str, time_limit_s: float) -> list[FirstOrder]:
    """The step in the best order of keeping everything, unless that saves nothing, neither of the fastest plan's bytes
    nor of the least that any plan needs; and as it is, with which it ends. Raises ``KeyboardInterrupt`` on Ctrl-C."""
    fastest = fastest_plan(restrict(lowered.problem, variant))
    if fastest is None:
        least_bytes = floor_bytes(lowered.problem)
        return [FirstOrder(lowered, least_bytes, least_bytes)]
    captured = FirstOrder.of(lowered, fastest)
    schedule, ordered = reorder(calls(fastest.runs, lowered), lowered, time_limit_s=time_limit_s)
    if ordered.interrupted:
        raise KeyboardInterrupt
    forward = tuple(call.node for call in schedule if call.kind == "forward")
    backward = [call.node for call in schedule if call.kind in ("backward", "update")]
    made = {saved.value.name for each in lowered.catalogue.intermediates.values() for saved in each}
    order = Order(tuple(name for name in forward if name not in made), late_updates(lowered.catalogue, backward))
    other = in_order(lowered, order)
    along = fastest_plan(restrict(other.problem, variant))
    if along is None:
        return [captured]
    ahead = FirstOrder.of(other, along)
    saved_bytes = max(captured.fastest_bytes - ahead.fastest_bytes, captured.least_bytes - ahead.least_bytes)
    return [ahead, captured] if saved_bytes > LEAST_SAVING * captured.fastest_bytes else [captured]


def along(lowered: Lowered, runs: Runs, steps: Sequence[PlanStep]) -> tuple[Lowered, Runs] | None:
    """``lowered`` in the order of a plan's ``steps``, and its ``runs`` there; None where they are no plan of it, and
    where the plan has copies: these keep the order that they were timed in.

    A run that is made again comes before the backward operator that it precedes; of the same operator, the first
    remains the first.
    """
    if runs.moved:
        return None
    again = defaultdict(list)
    for stage in runs.stages:
        for run in stage.recompute:
            again[run.operator].append(run)
    first, stages, waiting = {run.operator: run for run in runs.forward}, [], []
    last = {stage.backward: stage for stage in runs.stages}
    forward = []
    for step in steps:
        if step.kind == "forward" and step.node in first:
            forward.append(first[step.node])
        elif step.kind == "recompute" and again.get(step.node):
            waiting.append(again[step.node].pop(0))
        elif step.kind == "update":
            stages.append(Stage((), step.node, last[step.node].implementation))
        elif step.kind == "backward":
            stages.append(Stage(tuple(waiting), step.node, last[step.node].implementation))
            waiting = []
    by_name = {stage.backward: stage for stage in stages}
    stages = [by_name[name] for name in late_updates(lowered.catalogue, tuple(by_name))]
    position = {run.operator: k for k, run in enumerate(forward)}
    stages = [replace(s, recompute=tuple(sorted(s.recompute, key=lambda run: position[run.operator]))) for s in stages]
    made = Runs(tuple(forward), tuple(stages))
    other = in_order(lowered, order_of(made))
    try:
        replay(other.problem, made)
    except (InvalidPlan, KeyError) as reason:
        logger.debug("the plan is none along its own order: %s", reason)
        return None
    return other, made


def _last_readers(offers: Catalogue, operators: Sequence[Operator]) -> Mapping[str, str]:
    """Storage → the last operator that reads it."""
    return {offers.storage(name): op.name for op in operators if not op.view for name in operator_inputs(op)}


def _offered(offers: Catalogue, operator: str, named: Named, last: Mapping[str, str]) -> Named:
    """Without what overwrites a storage that is read later; the first, which PyTorch itself runs, is kept: what it
    changes has its order from the graph."""

    def is_last(overwritten: str | None) -> bool:
        return overwritten is None or last.get(offers.storage(overwritten)) == operator

    return {name: offer for k, (name, offer) in enumerate(named.items()) if k == 0 or is_last(offer.overwrites)}
