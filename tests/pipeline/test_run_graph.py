"""Any order that a schedule's graph allows is the same step: checked by running random ones."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from eager_reference import compare_steps
from module_cases import CASES
from module_cases import case_model as module_model
from slow_cases import slow_but
from smallest_budget import at_smallest_budget
from trainer_cases import MODELS, OPTIMIZERS, EagerStep, both_step, case_loss, case_model

from monet.executor.trainer import Trainer
from monet.ops.offers.offering import Offering
from monet.pipeline.placement import Placement
from monet.pipeline.planning import plan_prepared, plan_result
from monet.pipeline.preparation import Prepared, Preparing, prepare, prepare_whole
from monet.pipeline.run_graph import reorder, run_graph
from monet.pipeline.schedule import Call, calls
from monet.pipeline.unrolling import unroll
from monet.planner.baselines.pytorch import keep_all
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.layout import Lifetime, layout
from monet.planner.order import Ordered
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import OrderGraph, memory_along, peak_bytes
from monet.planner.search import Solving
from monet.planner.solution import Solution
from monet.plans.format import ALIGNMENT
from monet.plans.plan import Plan
from monet.step.training_step.whole_step import capture_whole_step, plain_inputs


def _tight(prepared: Prepared) -> Solution:
    """A solution that recomputes: for the smallest budget that is known to work with one implementation a operator."""
    solution = at_smallest_budget(
        lambda budget: plan_prepared(prepared, budget, Solving(time_limit_s=10), variant="none")
    ).solution
    assert any(stage.recompute for stage in solution.runs.stages)
    return solution


def _random_order(graph: OrderGraph, rng: random.Random) -> list[int]:
    left = {n: len(before) for n, before in enumerate(graph.predecessors)}
    ready, order = [n for n, count in left.items() if count == 0], list[int]()
    while ready:
        order.append(ready.pop(rng.randrange(len(ready))))
        for m in graph.successors[order[-1]]:
            left[m] -= 1
            if left[m] == 0:
                ready.append(m)
    return order


def _plan(prepared: Prepared, solution: Solution, schedule: list[Call]) -> Plan:
    """As ``plan_prepared`` makes it, verified, with this order and whatever arena it needs."""
    unrolled = unroll(schedule, prepared.lowered)
    lifetimes = [Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers]
    placed = Placement(unrolled, Ordered((), 0, 0, "random"), layout(lifetimes, alignment=ALIGNMENT, time_limit_s=0))
    return plan_result(prepared, prepared.problem.fixed_bytes + placed.layout.arena_bytes, solution, placed).plan


def _shuffled(prepared: Prepared, solution: Solution, seed: int, *, differs: bool = True) -> Plan:
    """``differs``: the graph is large enough that no order is the captured one by chance."""
    graph, called = run_graph(calls(solution.runs, prepared.lowered), prepared.lowered)
    order = _random_order(graph, random.Random(seed))
    assert not differs or order != sorted(order)
    return _plan(prepared, solution, [call for n in order if (call := called[n]) is not None])


@pytest.mark.parametrize(
    "case", ["residual", pytest.param("transformer", marks=pytest.mark.slow), "awkward", "running"]
)
def test_a_module_runs_in_any_order_that_its_graph_allows(case: str) -> None:
    model, make = module_model(case), CASES[case][1]
    prepared = prepare(model, *make(0))
    solutions = [prepared.eager]
    if case in ("residual", "transformer"):
        solutions.append(_tight(prepared))
    for solution in solutions:
        for seed in range(3):
            compare_steps(model, _shuffled(prepared, solution, seed), make, steps=2)


class Twice(torch.nn.Linear):
    """Its product is read by two operators; the last one may have its memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 2.0 + torch.relu(y)


@pytest.mark.parametrize("rows", [0, 4])
def test_nothing_is_overwritten_before_it_is_read(rows: int) -> None:
    """Not in an empty batch either, where no bytes tell the order."""
    model = Twice(3, 3)

    def make(seed: int) -> Any:
        return (torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)),), {}

    prepared = prepare(model, *make(0))
    offered = {op.id: [i.name for i in op.implementations] for op in prepared.problem.forward}
    forward = [
        replace(r, implementation="in-place") if "in-place" in offered[r.operator] else r
        for r in prepared.eager.runs.forward
    ]
    assert [run.implementation for run in forward].count("in-place") >= 1
    solution = replace(prepared.eager, runs=replace(prepared.eager.runs, forward=tuple(forward)))
    for seed in range(10):
        compare_steps(model, _shuffled(prepared, solution, seed, differs=False), make, steps=1)


@pytest.mark.parametrize("name", slow_but(["residual"], ["residual", "transformer"]))
def test_a_whole_step_runs_in_any_order_that_its_graph_allows(name: str) -> None:
    make = OPTIMIZERS["sgd, momentum, decay"]
    inputs, targets = MODELS[name][1](0)

    def capture(model: torch.nn.Module) -> Any:
        optimizer = make(list(model.parameters()))
        return capture_whole_step(model, inputs, targets, loss_fn=case_loss, optimizer=optimizer), optimizer

    prepared = prepare_whole(capture(case_model(name))[0], offering=Offering(exact=True))
    solution = _tight(prepared)
    for seed in range(3):
        model = case_model(name)
        eager = EagerStep(model, make)
        step, optimizer = capture(model)
        plan = _shuffled(prepared, solution, seed)
        trainer = Trainer(step.module, plan, step.captured, step.updates, optimizer, plain_inputs)
        for batch in range(2):
            both_step(trainer, eager, MODELS[name][1](batch), batch)
        assert all(
            torch.equal(a, b)
            for a, b in zip(model.state_dict().values(), eager.model.state_dict().values(), strict=True)
        )


def test_bytes_along_a_schedule_are_those_of_its_buffers() -> None:
    """The graph counts whole runs; the buffers' ticks are finer, so their load is at most that, and equal wherever a
    run asks for no more than its results."""
    model, (args, kwargs) = module_model("residual"), CASES["residual"][1](0)
    prepared = prepare(model, args, kwargs)
    for solution in (prepared.eager, _tight(prepared)):
        schedule = calls(solution.runs, prepared.lowered)
        graph, called = run_graph(schedule, prepared.lowered)
        unrolled = unroll(schedule, prepared.lowered)
        along = [b for b, call in zip(memory_along(graph, range(len(graph.nodes))), called, strict=True) if call]
        ends = [*(step.begin for step in unrolled.steps[1:]), max(b.end for b in unrolled.buffers)]
        for step, end, bound in zip(unrolled.steps, ends, along, strict=True):
            load = max(
                sum(-(-b.bytes // ALIGNMENT) * ALIGNMENT for b in unrolled.buffers if b.begin <= tick < b.end)
                for tick in range(step.begin, end)
            )
            assert load <= bound, step.node
            if len(step.requests) <= 1:
                assert load == bound, step.node


def test_reordering_lowers_the_peak_to_what_it_proves() -> None:
    """On a step whose captured order is not the best one; the plan that is made has that peak."""
    torch.manual_seed(0)
    inputs, targets = MODELS["transformer"][1](0)
    model = case_model("transformer")
    optimizer = torch.optim.Adam(model.parameters())
    step = capture_whole_step(model, inputs, targets, loss_fn=case_loss, optimizer=optimizer)
    prepared = prepare_whole(step)
    schedule = calls(keep_all(prepared.problem, sys.maxsize).runs, prepared.lowered)
    graph, _ = run_graph(schedule, prepared.lowered)
    ordered, found = reorder(schedule, prepared.lowered, time_limit_s=10)
    assert sorted(map(id, ordered)) == sorted(map(id, schedule))
    assert int(forced_live(graph).max()) <= found.bound_bytes == found.peak_bytes
    assert found.peak_bytes < peak_bytes(graph, range(len(graph.nodes)))
    again, _ = run_graph(ordered, prepared.lowered)
    assert peak_bytes(again, range(len(again.nodes))) == found.peak_bytes


class _ShapeOnly(torch.nn.Module):
    """``zeros_like`` is called with a quotient, and reads nothing of it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        quotient = x / y
        return (torch.zeros_like(quotient) + x.sin()).cos() * quotient


def test_a_run_comes_after_what_makes_an_input_of_which_it_reads_only_the_shape() -> None:
    """In a problem along this order, another implementation reads it."""
    made = torch.rand(2, 64, 64, requires_grad=True)
    prepared = prepare(_ShapeOnly(), (made, made.detach() + 1), {})
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    schedule = calls(fastest.runs, prepared.lowered)
    zeros = next(call for call in schedule if call.node == "zeros_like")
    assert not zeros.implementation.inputs(), "the model tests nothing"
    graph, called = run_graph(schedule, prepared.lowered)
    rng = random.Random(0)
    for _ in range(30):
        nodes = [call.node for n in _random_order(graph, rng) if (call := called[n]) is not None]
        assert nodes.index("div") < nodes.index("zeros_like")


class _Overwritten(torch.nn.Module):
    """``zeros_like`` reads nothing of a quotient that is negated afterwards, perhaps in place."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        quotient = x / y
        zeros = torch.zeros_like(quotient)
        return quotient.neg().sin() + (zeros + x.sin()).cos()


def test_a_run_that_overwrites_comes_after_what_reads_only_the_shape() -> None:
    """In a problem along another order, in which an implementation reads it, overwriting would not be offered."""
    made = torch.rand(2, 64, 64, requires_grad=True)
    measured = prepare(_Overwritten(), (made, made.detach() + 1), {}).lowered.profile
    quick = {
        key: replace(found, time_s=0.0 if "aten.neg_.default" in key else found.time_s)
        for key, found in measured.measurements.items()
    }
    costs = Preparing(costs=replace(measured, measurements=quick))
    prepared = prepare(_Overwritten(), (made, made.detach() + 1), {}, costs)
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    schedule = calls(fastest.runs, prepared.lowered)
    assert next(call for call in schedule if call.node == "neg").implementation.overwrites, "the model tests nothing"
    graph, called = run_graph(schedule, prepared.lowered)
    rng = random.Random(0)
    for _ in range(30):
        nodes = [call.node for n in _random_order(graph, rng) if (call := called[n]) is not None]
        assert nodes.index("zeros_like") < nodes.index("neg")
