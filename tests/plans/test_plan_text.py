"""What ``print`` says of a plan: short, every figure the plan's own, whatever its solver leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from random_plans import random_plan

from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan
from monet.plans.text import compared

SOLVER = {
    "objective_s": 1.5, "baseline_s": 1.2, "bound_s": 0.75, "bound_scope": "full", "eager_peak_bytes": 10_000_000
}  # fmt: skip


def _moving() -> Plan:
    steps = (
        PlanStep("forward", "a", "aten", {}, {"a": 0}, (0,), (3_000_000,), 0),
        PlanStep("write", "a", "copy", {"a": 0}, {}, (), (), 1, place=0),
        PlanStep("wait", "a", "copy", {"a": 0}, {}, (), (), 2, place=0),
        PlanStep("recompute", "b", "aten", {}, {}, (), (), 3),
        PlanStep("recompute", "b", "aten", {}, {}, (), (), 4),
    )
    buffers = (Buffer(0, "a", 3_000_000, 0, 0, 3, 0, 2),)
    return Plan(
        5_000_000, 3_000_000, 3_000_000, 1_000_000, {"parameters": 1_000_000}, steps, buffers, 3_002_368,
        model={"name": "tiny"}, solver=SOLVER,
    )  # fmt: skip


def test_every_line() -> None:
    assert str(_moving()).splitlines() == [
        "plan of tiny, 5 steps",
        "budget      5.000 MB",
        "peak        4.000 MB (4,000,000 bytes), 40.0% of eager's",
        "  of which  1.000 MB fixed, 3.000 MB arena",
        "predicted   1.500 s a step, 25.0% longer than eager's",
        "bound       750.000 ms, which holds for every plan",
        "run again   2 runs",
        "moved       1 tensor, 3.000 MB",
    ]
    assert repr(_moving()) == "<Plan of tiny: 5 steps in 4,000,000 of 5,000,000 bytes>"


def test_what_the_solver_does_not_say_is_left_out() -> None:
    plan = replace(_moving(), steps=(), buffers=(), model={}, solver={"objective_s": "fast", "bound_s": True})
    assert str(plan).splitlines() == [
        "plan of a model without a name, 0 steps",
        "budget      5.000 MB",
        "peak        4.000 MB (4,000,000 bytes)",
        "  of which  1.000 MB fixed, 3.000 MB arena",
        "run again   nothing",
        "moved       nothing",
    ]


@pytest.mark.parametrize("name", ["", 3])
def test_what_is_no_name_is_not_printed(name: object) -> None:
    assert str(replace(_moving(), model={"name": name})).startswith("plan of a model without a name, ")


def test_a_name_out_of_a_file_moves_no_cursor() -> None:
    assert "\x1b" not in str(replace(_moving(), model={"name": "\x1b[2J"}))
    assert "\n" not in repr(replace(_moving(), model={"name": "a\nb"}))


@pytest.mark.parametrize("seed", range(5))
def test_it_stays_short(seed: int) -> None:
    plan = random_plan(seed, steps=200)
    assert len(str(plan)) < 600 and len(str(plan).splitlines()) < 10 and len(repr(plan)) < 200
    assert f"{plan.peak_bytes:,}" in repr(plan)


@pytest.mark.parametrize(
    ("overhead", "said"),
    [
        (0.25, "25.0% longer than eager's"),
        (-0.197, "19.7% shorter than eager's"),
        (0.0, "as long as eager's"),
        (-0.0004, "as long as eager's"),
    ],
)
def test_a_step_beside_eagers(overhead: float, said: str) -> None:
    assert compared(overhead) == said
