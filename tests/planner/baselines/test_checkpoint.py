"""``torch.utils.checkpoint`` around repeated blocks: what is kept, what runs again, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layered_problems import NORM, PRODUCT, STREAM, Network, layers, repeated_problems, without_blocks

from monet.errors import ConfigError, InfeasibleBudget
from monet.planner.baselines.blocks import repeated_blocks
from monet.planner.baselines.checkpoint import block, selective, sqrt_n_blocks
from monet.planner.baselines.pytorch import keep_all
from monet.planner.problem import BackwardImplementation, ForwardImplementation, ForwardOperator, Problem, Tensor
from monet.planner.replay import replay
from monet.planner.schedules import plan_variant
from monet.planner.solution import Solution

PLENTY = 10**6
VARIANTS = ("block", "sqrt-n-blocks", "selective")


def check(problem: Problem, plan: Solution, budget: int) -> None:
    cost = replay(problem, plan.runs)
    assert (plan.objective_s, plan.peak_bytes) == (cost.objective_s, cost.peak_bytes)
    assert cost.peak_bytes <= budget
    assert (plan.status, plan.bound_scope) == ("heuristic", "none")


def again(problem: Problem, plan: Solution) -> list[tuple[int, list[int]]]:
    """(which operator's backward it is, which operators run again before it), by position, where any do."""
    place = {operator.id: i for i, operator in enumerate(problem.forward)}
    stages = [(t, [place[run.operator] for run in stage.recompute]) for t, stage in enumerate(plan.runs.stages)]
    return [(len(problem.forward) - 1 - t, runs) for t, runs in stages if runs]


def test_a_block_is_run_again_before_its_first_reader() -> None:
    """Layer k is at 1 + 4 k: norm, product, activation, sum. The backward of the activation reads the product; that of
    the sum reads nothing; neither's result is read."""
    problem = layers(5)
    plan = block(problem, PLENTY)
    check(problem, plan, PLENTY)
    assert again(problem, plan) == [(3 + 4 * k, [1 + 4 * k, 2 + 4 * k]) for k in reversed(range(5))]
    # The most is held when the last layer's product is made again: all that passes between layers but the result of
    # the last, and a norm, the product and its workspace.
    held = 5 * STREAM + NORM + PRODUCT + 1
    assert plan.peak_bytes == held
    with pytest.raises(InfeasibleBudget, match="running repeated blocks again") as refused:
        block(problem, held - 1)
    assert refused.value.smallest_bytes == held


def test_selective_keeps_products_and_runs_the_rest_again_for_their_readers() -> None:
    problem = layers(5)
    plan = selective(problem, PLENTY)
    check(problem, plan, PLENTY)
    assert again(problem, plan) == [(2 + 4 * k, [1 + 4 * k]) for k in reversed(range(5))]
    assert block(problem, PLENTY).peak_bytes < plan.peak_bytes < keep_all(problem, PLENTY).peak_bytes
    assert keep_all(problem, PLENTY).objective_s < plan.objective_s < block(problem, PLENTY).objective_s


@pytest.mark.parametrize("kind", ["matmul", "attention", "convolution", "", "norm"])
def test_selective_keeps_three_kinds(kind: str) -> None:
    problem = layers(4)
    forward = tuple(replace(o, kind=kind) if o.kind else o for o in problem.forward)
    problem = replace(problem, forward=forward)
    kept = kind in ("matmul", "attention", "convolution")
    assert (selective(problem, PLENTY).runs != block(problem, PLENTY).runs) == kept


@pytest.mark.parametrize(("groups", "sizes"), [(1, [6]), (2, [3, 3]), (4, [2, 1, 2, 1]), (6, [1] * 6), (9, [1] * 6)])
def test_groups_of_blocks(groups: int, sizes: list[int]) -> None:
    """A group is run again at once. The last one is not where that fits, as it is faster."""
    problem = layers(6)
    plan = sqrt_n_blocks(problem, PLENTY, groups=groups)
    check(problem, plan, PLENTY)
    first, expected = 0, []
    for size in sizes:
        members = [i for k in range(first, first + size) for i in range(1 + 4 * k, 5 + 4 * k)]
        # The last sum is read by no backward operator of this group, nor the activation before it.
        expected.append((members[-2], members[:-2]))
        first += size
    assert again(problem, plan) == expected[-2::-1]
    with pytest.raises(InfeasibleBudget) as refused:
        sqrt_n_blocks(problem, 1, groups=groups)
    least = refused.value.smallest_bytes
    assert least is not None and least <= plan.peak_bytes
    if least < plan.peak_bytes:
        assert again(problem, sqrt_n_blocks(problem, least, groups=groups)) == expected[::-1]
    assert (least < plan.peak_bytes) == (groups != 4)


def test_the_number_of_groups_follows_the_budget() -> None:
    problem = layers(64)
    all_kept, every = keep_all(problem, PLENTY), block(problem, PLENTY)
    assert sqrt_n_blocks(problem, PLENTY).objective_s == pytest.approx(all_kept.objective_s)
    costs = []
    for budget in (all_kept.peak_bytes, all_kept.peak_bytes - 1, every.peak_bytes, every.peak_bytes // 2 + 40):
        plan = sqrt_n_blocks(problem, budget)
        check(problem, plan, budget)
        costs.append(plan.objective_s)
    assert costs == sorted(costs) and costs[0] < costs[1] < costs[-1]
    # 64 boundaries between blocks against 8 between groups, and the inside of one of these.
    with pytest.raises(InfeasibleBudget, match="groups of repeated blocks") as refused:
        sqrt_n_blocks(problem, 1)
    least = refused.value.smallest_bytes
    assert least is not None and least < every.peak_bytes
    check(problem, sqrt_n_blocks(problem, least), least)
    with pytest.raises(ConfigError, match="1 group or more, not 0"):
        sqrt_n_blocks(problem, PLENTY, groups=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_network_without_blocks_is_refused(variant: str) -> None:
    with pytest.raises(InfeasibleBudget, match=r"none of its operators are repeated.* sqrt-n needs no blocks") as error:
        plan_variant(variant, without_blocks(), PLENTY)
    assert error.value.smallest_bytes is None


def test_both_repetitions_of_a_network_run_again() -> None:
    network = Network()
    x = network.add(STREAM)
    for _ in range(4):
        x = network.layer(x)
    x = network.add(50, [x], [x])
    for _ in range(3):
        x = network.add(6, [network.add(9, [x], [x])], reads_itself=True)
    problem = network.problem()
    assert [(one.period, one.count) for one in repeated_blocks(problem)] == [(4, 4), (2, 3)]
    plan = block(problem, PLENTY)
    check(problem, plan, PLENTY)
    ran = {i for _, runs in again(problem, plan) for i in runs}
    assert {1, 2, 13, 14} <= ran and not ran & {0, 17} and max(ran) > 17


def dropouts(mask_again: bool, recomputable: bool = True, pinned: bool = False) -> Problem:
    """Layers of a product and a dropout with its mask; the backward of the dropout reads the mask."""
    network = Network()
    x = network.add(STREAM)
    for k in range(4):
        x = network.add(STREAM, [network.add(PRODUCT, [x], [x])])
        last = network.forward[-1]
        reads = () if mask_again else (f"mask{k}",)
        kernel = ForwardImplementation("aten", 1e-3, recompute_reads=reads)
        network.forward[-1] = ForwardOperator(last.id, last.inputs, (x, f"mask{k}"), (kernel,), recomputable)
        network.tensors.append(Tensor(f"mask{k}", 2, pinned))
        back = BackwardImplementation("aten", 1e-3, (f"mask{k}", last.inputs[0]))
        network.backward[-1] = replace(network.backward[-1], implementations=(back,))
    network.add(1, [x], [x])
    return network.problem()


@pytest.mark.parametrize("policy", [block, sqrt_n_blocks, selective])
@pytest.mark.parametrize(
    ("problem", "ran"),
    [
        (dropouts(mask_again=True), [1, 2]),
        # The mask stays, so that the dropout need not run again; nor can it, or need it, in the others.
        (dropouts(mask_again=False), [1]),
        (dropouts(mask_again=True, recomputable=False), [1]),
        (dropouts(mask_again=True, pinned=True), [1]),
    ],
    ids=["made again", "read again", "not recomputable", "pinned"],
)
def test_masks(policy: object, problem: Problem, ran: list[int]) -> None:
    assert [(one.first, one.period, one.count) for one in repeated_blocks(problem)] == [(1, 2, 4)]
    assert callable(policy)
    plan = policy(problem, PLENTY) if policy is not sqrt_n_blocks else sqrt_n_blocks(problem, PLENTY, groups=4)
    check(problem, plan, PLENTY)
    first = [i for _, runs in again(problem, plan) for i in runs if i <= 2]
    assert first == ran


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=repeated_problems(), room=st.integers(1, 80))
def test_plans_replay_and_fit_or_say_what_they_need(problem: Problem, room: int) -> None:
    blocks = repeated_blocks(problem)
    inside = {problem.forward[i].id for one in blocks for i in range(one.first, one.end)}
    for name in VARIANTS:
        budget = problem.fixed_bytes + room
        if not blocks:
            with pytest.raises(InfeasibleBudget, match="repeated as a block"):
                plan_variant(name, problem, budget)
            continue
        try:
            plan = plan_variant(name, problem, budget)
        except InfeasibleBudget as error:
            assert error.smallest_bytes is not None and error.smallest_bytes > budget
            budget = error.smallest_bytes
            plan = plan_variant(name, problem, budget)
            assert plan.peak_bytes == budget
        check(problem, plan, budget)
        ran = [run.operator for stage in plan.runs.stages for run in stage.recompute]
        assert len(ran) == len(set(ran)) and set(ran) <= inside
