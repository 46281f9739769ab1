"""The memory of a whole step: the promise to the byte, and when gradients and updates come."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from repository import ROOT
from trainer_cases import (
    OPTIMIZERS,
    _tokens,
    case_loss,
    case_model,
    optimize_case,
)

from monet.ops.catalogue import catalogue
from monet.step.training_step.updates import UPDATE
from monet.step.training_step.whole_step import capture_whole_step

pytestmark = pytest.mark.usefixtures("hasty_orders")


def test_gradients_die_as_soon_as_they_are_used() -> None:
    """Fewer bytes than the same step with all updates at the end, as eager has it, before anything is recomputed."""
    whole = optimize_case("residual", case_model("residual"), OPTIMIZERS["sgd"], budget="100%").plan
    less = whole.solver["baseline_peak_bytes"] - 1
    plan = optimize_case("residual", case_model("residual"), OPTIMIZERS["sgd"], budget=less).plan
    assert plan.peak_bytes <= less and not any(step.kind == "recompute" for step in plan.steps)
    first = next(i for i, step in enumerate(plan.steps) if step.kind == "update")
    assert any(step.kind == "backward" for step in plan.steps[first:])
    assert plan.fixed["gradients"] == 0


@pytest.mark.slow
def test_the_peak_is_the_promise_to_the_byte() -> None:
    """In a process of its own, since the meter counts all of torch's memory; the first step makes the state."""
    script = ROOT / "tests" / "support" / "peak_of_whole_step.py"
    for optimizer, loss in (("sgd, momentum, decay", "cross entropy"), ("adamw", "mean squared error")):
        done = subprocess.run(
            [sys.executable, str(script), optimizer, loss], capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        measured, promised = map(int, done.stdout.split())
        assert measured == promised, optimizer


def test_no_update_comes_before_a_reader_of_its_parameter() -> None:
    """Nor before what could be made again from it: recomputation with new weights would be another step."""
    model = case_model("transformer")
    inputs, targets = _tokens(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = capture_whole_step(model, inputs, targets, loss_fn=case_loss, optimizer=optimizer)
    graph = step.captured.graph
    updated: dict[str, int] = {}
    for position, op in enumerate(graph.backward):
        if op.name.startswith(UPDATE):
            updated[graph.storage(op.args[1].name)] = position
    assert len(updated) == len(list(model.parameters()))
    stale = dict(updated)  # storage → the first position at which it cannot be made again as it was
    for op in graph.forward:
        from_inputs = [stale[graph.storage(n)] for n in _inputs(op) if graph.storage(n) in stale]
        for name in op.outputs:
            if name is not None and from_inputs:
                stale[graph.storage(name)] = min([*from_inputs, stale.get(graph.storage(name), len(graph.backward))])
    offers = catalogue(graph)
    for position, op in enumerate(graph.backward):
        for implementation in offers.backward.get(op.name, {}).values():
            for name in implementation.inputs():
                storage = offers.storage(name)
                if storage in stale and not op.name.startswith(UPDATE):
                    assert position < stale[storage], (op.name, name)


def _inputs(op: Any) -> tuple[str, ...]:
    from monet.base.graph import operator_inputs

    return operator_inputs(op)
