"""Which of an optimiser's state is moved, when it is copied, and what the planner makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from module_cases import costs_by_bytes
from torch import nn
from trainer_cases import case_loss

from monet.pipeline.carried_state import AHEAD, StateMoves, state_choices, with_carried
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare_whole
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.replay import replay
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.plans.format import whole_blocks
from monet.step.second_memory.offload import parse_offload
from monet.step.training_step.whole_step import capture_whole_step


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    """Two updates with 4 MB of state, two with 1.2 MB, and small ones."""
    torch.manual_seed(0)
    layers = [nn.Linear(1000, 500), nn.Tanh(), nn.Linear(500, 300), nn.Tanh(), nn.Linear(300, 500), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(500, 1000))
    batch = torch.randn(40, 1000), torch.arange(40)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        whole = capture_whole_step(model, *batch, loss_fn=case_loss, optimizer=optimizer)
        return offloaded(prepare_whole(whole), parse_offload("bandwidth=8GB/s"))


def _with(prepared: Prepared, text: str) -> Prepared:
    return offloaded(prepared, parse_offload(text))


def test_choices_are_of_whole_updates_and_of_large_tensors(prepared: Prepared) -> None:
    none, half, everything, waiting = state_choices(prepared.lowered)
    values = prepared.lowered.catalogue.values
    assert none == StateMoves() and len(everything.names) == 4 and half.names < everything.names
    assert {values[name].storage_bytes for name in everything.names} == {2_000_000}
    assert {name.rpartition(".")[0] for name in half.names} < {name.rpartition(".")[0] for name in everything.names}
    assert waiting == replace(everything, ahead=0)


def test_no_choice_where_nothing_can_be_moved(prepared: Prepared) -> None:
    assert state_choices(_with(prepared, "bandwidth=8GB/s,mode=static").lowered) == [StateMoves()]
    assert state_choices(_with(prepared, "bandwidth=8GB/s,limit=2MB").lowered) == [StateMoves()]
    assert len(state_choices(_with(prepared, "bandwidth=8GB/s,limit=5MB").lowered)) == 3
    without = replace(prepared.lowered, problem=replace(prepared.problem, second=None))
    assert state_choices(without) == [StateMoves()]


@pytest.mark.parametrize("rate", ["1GB/s", "8GB/s", "1000GB/s"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_bytes_and_times(prepared: Prepared, rate: str, number: int) -> None:
    prepared = _with(prepared, f"bandwidth={rate},limit=1GB")
    moves = state_choices(prepared.lowered)[number]
    lowered = with_carried(prepared.lowered, moves)
    problem, before = lowered.problem, prepared.problem
    gone = sum(lowered.catalogue.values[name].storage_bytes for name in moves.names)
    assert problem.fixed_bytes == before.fixed_bytes - gone == sum(lowered.fixed.values())
    assert problem.second is not None and problem.second.limit_bytes == 1_000_000_000 - sum(
        whole_blocks(state.bytes) for state in problem.carried
    )
    for k, (operator, old) in enumerate(zip(problem.backward, before.backward, strict=True)):
        there = sum(whole_blocks(s.bytes) for s in problem.carried if s.issue <= k <= s.release)
        assert operator.live_before_bytes - old.live_before_bytes == there
        assert operator.live_during_bytes - old.live_during_bytes == there
    stages = [state.stage for state in problem.carried]
    assert stages == sorted(stages)
    for state in problem.carried:
        assert 0 <= state.issue <= state.stage <= state.release < len(problem.backward)
        assert problem.backward[state.stage].id.startswith("update ")
        between = {s for s in stages if state.issue <= s < state.stage}
        later = {s for s in stages if state.stage < s <= state.release}
        assert len(between) < AHEAD + (moves.ahead == 0) and len(later) < AHEAD + (moves.ahead == 0)
        if moves.ahead == 0:
            assert state.issue == state.stage == state.release


def test_the_replayed_channel_waits_for_a_slow_memory(prepared: Prepared) -> None:
    waited = []
    for rate in ("0.1GB/s", "1GB/s", "100000GB/s"):
        lowered = with_carried(_with(prepared, f"bandwidth={rate}").lowered, state_choices(prepared.lowered)[2])
        plan = fastest_plan(lowered.problem)
        assert plan is not None
        cost = replay(lowered.problem, plan.runs)
        traffic = cost.traffic
        assert traffic is not None
        assert traffic.written_bytes == traffic.read_bytes == sum(s.bytes for s in lowered.problem.carried)
        waited.append(traffic.waited_s)
        # What is not waited for is hidden behind operators.
        assert 0 <= traffic.copy_s - traffic.waited_s <= cost.objective_s - traffic.waited_s
    assert waited[0] > waited[1] > waited[2] and waited[2] == pytest.approx(0, abs=1e-6)


def test_a_plan_takes_the_state_away_only_where_that_is_needed(prepared: Prepared) -> None:
    solving = Solving(time_limit_s=6)
    roomy = plan_prepared(prepared, 10**9, solving, variant=MOVE)
    assert roomy.plan.second_bytes == 0 and roomy.summary.overhead <= solving.gap
    assert roomy.plan.fixed["optimizer_state"] > 8_000_000
    budget = roomy.plan.peak_bytes - 3_000_000
    tight = plan_prepared(prepared, budget, solving, variant=MOVE)
    assert tight.plan.peak_bytes <= budget
    assert tight.plan.fixed["optimizer_state"] <= roomy.plan.fixed["optimizer_state"] - 4_000_000
    second = tight.summary.second_memory
    assert second is not None and second.moved >= 2 and second.moved_bytes >= 4_000_000
    assert second.written_bytes >= 4_000_000 and second.read_bytes >= 4_000_000
    assert str(tight.plan.solver["bound_scope"]).endswith("that moves this state")
    assert tight.plan.solver["bound_s"] <= tight.plan.solver["objective_s"]
