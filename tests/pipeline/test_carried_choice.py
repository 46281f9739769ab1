"""Which of an optimiser's state is moved, when it is copied, and what the planner makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from module_cases import costs_by_bytes
from torch import nn
from trainer_cases import case_loss

from monet.base.graph import PARAMETER
from monet.ops.offers.implementation import Implementation
from monet.pipeline.carried_copies import copied, with_carried_copies
from monet.pipeline.carried_state import MOST_TAKEN, StateMoves, chosen_moves, state_choices, with_carried
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare, prepare_whole
from monet.pipeline.schedule import with_moves
from monet.pipeline.unrolling import unroll
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import recompute_cost
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.plans.format import COPY_ALIGNMENT, whole_blocks
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
    none, states, everything, waiting = state_choices(prepared.lowered)
    values = prepared.lowered.catalogue.values
    assert none == StateMoves() and len(states.names) == 4 and states.names < everything.names
    assert {values[name].storage_bytes for name in everything.names} == {2_000_000}
    parameters = {s.value for s in prepared.lowered.catalogue.graph.sources if s.kind == PARAMETER}
    assert len(everything.names - states.names) == 2 and everything.names - states.names < parameters
    assert waiting == replace(everything, beside=False)


def test_no_choice_where_nothing_can_be_moved(prepared: Prepared) -> None:
    assert state_choices(_with(prepared, "bandwidth=8GB/s,mode=static").lowered) == [StateMoves()]
    assert state_choices(_with(prepared, "bandwidth=8GB/s,limit=2MB").lowered) == [StateMoves()]
    assert len(state_choices(_with(prepared, "bandwidth=8GB/s,limit=5MB").lowered)) == 1
    without = replace(prepared.lowered, problem=replace(prepared.problem, second=None))
    assert state_choices(without) == [StateMoves()]


def test_no_choice_for_a_module_whose_parameters_are_its_callers(prepared: Prepared) -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 500))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        alone = offloaded(prepare(model, (torch.randn(40, 1000),), {}), parse_offload("bandwidth=8GB/s"))
    assert state_choices(alone.lowered) == [StateMoves()]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_program_counts_what_an_operator_uses(prepared: Prepared, number: int) -> None:
    prepared = _with(prepared, "bandwidth=8GB/s,limit=1GB")
    moves = state_choices(prepared.lowered)[number]
    lowered = with_carried(prepared.lowered, moves)
    problem, before, offers = lowered.problem, prepared.problem, lowered.catalogue
    size = {name: offers.values[name].storage_bytes for name in moves.names}
    assert problem.fixed_bytes == before.fixed_bytes - sum(size.values()) == sum(lowered.fixed.values())
    blocks = {name: whole_blocks(bytes) for name, bytes in size.items()}
    assert problem.second is not None and problem.second.limit_bytes == 1_000_000_000 - sum(blocks.values())
    spare = max(blocks.values()) if moves.beside else 0

    def used(runs: Mapping[str, Implementation]) -> int:
        read = {offers.storage(name) for run in runs.values() for name in run.inputs()}
        return sum(blocks[name] for name in read & moves.names)

    for now, old in zip(problem.backward, before.backward, strict=True):
        assert now.live_before_bytes - old.live_before_bytes == spare
        assert now.live_during_bytes - old.live_during_bytes == spare + used(offers.backward[now.id])
    for operator, earlier in zip(problem.forward, before.forward, strict=True):
        for run, was in zip(operator.implementations, earlier.implementations, strict=True):
            assert run.workspace_bytes - was.workspace_bytes == spare + used(offers.forward[operator.id])
            again = used(offers.recompute.get(operator.id, {}))
            assert recompute_cost(run)[1] - recompute_cost(was)[1] == again


def test_the_program_leaves_memory_for_what_stays(prepared: Prepared) -> None:
    """From behind the last operator of the forward pass that uses a parameter to before the first of the backward pass,
    what runs again for that one included."""
    everything = state_choices(prepared.lowered)[2]
    offers = prepared.lowered.catalogue
    kinds = {source.value: source.kind for source in offers.graph.sources}
    name = min(name for name in everything.names if kinds[name] == PARAMETER)
    size = whole_blocks(offers.values[name].storage_bytes)
    without = with_carried(prepared.lowered, everything).problem
    problem = with_carried(prepared.lowered, replace(everything, staying=frozenset([name]))).problem

    def uses(runs: Mapping[str, Implementation]) -> bool:
        return all(name in map(offers.storage, run.inputs()) for run in runs.values())

    forward = [op.implementations[0].workspace_bytes for op in problem.forward]
    added = [now - op.implementations[0].workspace_bytes for now, op in zip(forward, without.forward, strict=True)]
    used = [uses(offers.forward[op.id]) for op in problem.forward]
    assert any(used) and added == [size * (not any(used[i:])) for i in range(len(used))]
    used = [uses(offers.backward[op.id]) for op in problem.backward]
    first = used.index(True)
    assert first > 0
    for stage, (now, old) in enumerate(zip(problem.backward, without.backward, strict=True)):
        assert now.live_before_bytes - old.live_before_bytes == size * (stage <= first)
        assert now.live_during_bytes - old.live_during_bytes == size * (stage < first)


def test_a_busy_channel_is_left_to_state(prepared: Prepared) -> None:
    """Where copies of state take the channel all the time, activations are planned with what it has left."""
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    taken = []
    for rate in ("0.01GB/s", "1000GB/s"):
        of = _with(prepared, f"bandwidth={rate}").lowered
        first = chosen_moves(of, fastest.peak_bytes - 1_000_000, Solving(time_limit_s=60))[0][0]
        assert first.names
        taken.append(first.taken)
        second, before = with_carried(of, first).problem.second, of.problem.second
        assert second is not None and before is not None
        assert second.write_s(10**6) == pytest.approx(before.write_s(10**6) / (1 - min(first.taken, MOST_TAKEN)))
    assert taken[0] > 0.9 and taken[1] == 0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_copies_wait_for_a_slow_memory(prepared: Prepared, number: int) -> None:
    waited = []
    for rate in ("0.1GB/s", "1GB/s", "100000GB/s"):
        moves = state_choices(prepared.lowered)[number]
        lowered = with_carried(_with(prepared, f"bandwidth={rate}").lowered, moves)
        plan = fastest_plan(lowered.problem)
        assert plan is not None
        capacity = plan.peak_bytes - lowered.problem.fixed_bytes
        schedule = with_carried_copies(with_moves(plan.runs, lowered), lowered, capacity)
        traffic = copied(schedule, lowered)
        size = {name: lowered.catalogue.values[name].storage_bytes for name in moves.names}
        assert traffic.written_bytes == sum(size.values()) <= traffic.read_bytes
        waited.append(traffic.waited_s)
        unrolled = unroll(schedule, lowered)
        begins = {tick for buffer in unrolled.buffers for tick in (buffer.begin,)}
        load = max(
            sum(whole_blocks(buffer.bytes) for buffer in unrolled.buffers if buffer.begin <= tick < buffer.end)
            for tick in begins
        )
        assert load <= capacity + len(unrolled.buffers) * (COPY_ALIGNMENT - 1)
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
    assert tight.plan.solver["bound_scope"] == "full"  # whatever a plan moves
    assert tight.plan.solver["objective_s"] <= tight.plan.solver["bound_s"] * 1.05
    assert tight.plan.solver["bound_s"] <= tight.plan.solver["objective_s"]
