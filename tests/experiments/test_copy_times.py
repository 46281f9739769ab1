"""Seconds of the steps of a plan that moves: by hand on a few steps, and their sum is what the plan promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from module_cases import costs_by_bytes
from moved_steps import RATES, case_inputs, case_model, disk_or_skip, unmoved_plan

from monet.executor.codegen import implementation_of
from monet.lab.experiments.copy_times import seconds_with_copies
from monet.ops.offers.offering import Offering
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan
from monet.step.second_memory.offload import parse_offload


def _plan(mode: str = "asynchronous") -> Plan:
    """100 bytes take a second to write and half of one to read; each byte slows operators by 1 ms."""
    described = {"write_rate": 100.0, "read_rate": 200.0, "slowdown_s": 1e-3, "mode": mode}
    steps = (
        PlanStep("forward", "a", "aten", {}, {"a": 0}, (0,), (100,), 0),
        PlanStep("write", "a", "copy", {"a": 0}, {}, (), (), 1, place=0),
        PlanStep("forward", "b", "aten", {"a": 0}, {"b": 1}, (1,), (10,), 2),
        PlanStep("wait", "a", "copy", {"a": 0}, {}, (), (), 3, place=0),
        PlanStep("read", "a", "copy", {}, {}, (2,), (100,), 4, place=0),
        PlanStep("backward", "c", "aten", {"b": 1}, {}, (), (), 5),
        PlanStep("wait", "a", "copy", {}, {"a": 2}, (), (), 6, place=0),
        PlanStep("backward", "d", "aten", {"a": 2}, {}, (), (), 7),
    )
    buffers = (
        Buffer(0, "a", 100, 0, 0, 4, 0, 3), Buffer(1, "b", 10, 0, 2, 6, 2, 5), Buffer(2, "a", 100, 0, 4, 8, 4, 7),
    )  # fmt: skip
    return Plan(1000, 110, 110, 0, {}, steps, buffers, second_bytes=4096, environment={"second_memory": described})


def test_a_wait_takes_what_is_left_and_an_operator_what_it_loses() -> None:
    # b runs 0.25 s of the write's second; c all of the read's half second, and 1.5 s more.
    found = seconds_with_copies(_plan(), [1.0, 0.0, 0.25, 0.0, 0.0, 2.0, 0.0, 1.0])
    assert found == pytest.approx([1.0, 0.0, 0.25 + 0.1, 0.75, 0.0, 2.0 + 0.1, 0.0, 1.0])


def test_a_copy_beside_which_nothing_runs() -> None:
    found = seconds_with_copies(_plan(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    assert found == pytest.approx([1.0, 0.0, 0.0, 1.0 + 0.1, 0.0, 0.0, 0.5 + 0.1, 1.0])


def test_copies_that_the_step_waits_for_slow_nothing() -> None:
    found = seconds_with_copies(_plan("synchronous"), [1.0, 0.0, 0.25, 0.0, 0.0, 2.0, 0.0, 1.0])
    assert found == pytest.approx([1.0, 1.0, 0.25, 0.0, 0.5, 2.0, 0.0, 1.0])


def test_nothing_is_added_without_copies() -> None:
    plan = replace(_plan(), second_bytes=0, environment={})
    assert seconds_with_copies(plan, [1.0] * 8) == [1.0] * 8


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_the_sum_is_the_plan_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    disk = disk_or_skip(tmp_path)
    prepared = prepare(case_model("layers"), (case_inputs("layers", 0),), {}, offering=Offering(exact=True))
    prepared = offloaded(prepared, parse_offload(f"disk:{disk},{RATES},mode={mode}"))
    second, described = prepared.problem.second, prepared.environment["second_memory"]
    assert second is not None
    second = replace(second, slowdown_s=2e-11)
    lowered = replace(prepared.lowered, problem=replace(prepared.problem, second=second))
    environment = {**prepared.environment, "second_memory": {**described, "slowdown_s": 2e-11}}
    prepared = replace(prepared, lowered=lowered, environment=environment)
    full = unmoved_plan("layers")
    budget = full.fixed_bytes + int(0.6 * full.arena_bytes)
    plan = plan_prepared(prepared, budget, Solving(time_limit_s=10), variant=MOVE).plan
    assert plan.second_bytes > 0
    catalogue = prepared.lowered.catalogue
    alone = [
        0.0
        if step.place is not None
        else prepared.lowered.profile.of(implementation_of(step, catalogue), catalogue).time_s
        for step in plan.steps
    ]
    found = seconds_with_copies(plan, alone)
    assert sum(found) == pytest.approx(plan.solver["objective_s"], rel=1e-6)
    assert sum(found) > sum(alone) * 1.001
