"""Baselines: they replay, fit, and do what their papers say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner_problems import chain, problems
from published_profiles import GIB, P100, published

from monet.errors import ConfigError, InfeasibleBudget
from monet.planner.baselines.checkmate import checkmate_d, checkmate_o, fastest_algorithms
from monet.planner.baselines.gist import gist
from monet.planner.baselines.pytorch import keep_all
from monet.planner.baselines.segments import sqrt_n
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.published.profile import load_published
from monet.planner.replay import replay
from monet.planner.schedules import BASELINES, plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Solution

PLENTY = 10**6
KINDS = ["", "sign-bits", "pool-index", "sparse", "half"]


def even_chain(length: int) -> Problem:
    """Operators of one byte and one millisecond each; backward i reads the output of i."""
    return Problem(
        f"even chain of {length}",
        tuple(Tensor(f"t{i}", 1) for i in range(length)),
        tuple(
            ForwardOperator(f"op{i}", (f"t{i - 1}",) if i else (), (f"t{i}",), (ForwardImplementation("only", 1e-3),))
            for i in range(length)
        ),
        (),
        tuple(
            BackwardOperator(f"b{i}", (BackwardImplementation("only", 1e-3, (f"t{i}",)),), 0, 0)
            for i in range(length - 1, -1, -1)
        ),
        0,
    )


def skip_chain(length: int) -> Problem:
    """An even chain shaped like a U-Net: the second half also reads the first, last made first."""
    problem = even_chain(length)
    half = length // 2
    forward = [
        replace(o, inputs=(*o.inputs, f"t{length - 1 - i}")) if i > half else o for i, o in enumerate(problem.forward)
    ]
    return replace(problem, forward=tuple(forward))


def network() -> Problem:
    """conv, ReLU, pool, conv, ReLU, conv; the ReLUs and the pool offer what Gist wants."""
    plain = ForwardImplementation("plain", 1e-3)

    def relu(name: str, before: str, after: str) -> ForwardOperator:
        return ForwardOperator(
            name, (before,), (after,), (plain, ForwardImplementation("in-place", 1e-3, 0, before, 64))
        )

    def back(name: str, *runs: BackwardImplementation) -> BackwardOperator:
        return BackwardOperator(name, runs, 64, 128)

    def read(name: str, *reads: str, time_s: float = 1e-3, aliased: int = 0) -> BackwardImplementation:
        return BackwardImplementation(name, time_s, reads, 0, aliased)

    return Problem(
        "network",
        tuple(Tensor(name, 16 if name == "p" else 64) for name in ("c1", "r1", "p", "c2", "r2", "c3")),
        (
            ForwardOperator("conv1", (), ("c1",), (plain, ForwardImplementation("fast", 5e-4, 64))),
            relu("relu1", "c1", "r1"),
            ForwardOperator("pool", ("r1",), ("p",), (plain,)),
            ForwardOperator("conv2", ("p",), ("c2",), (plain,)),
            relu("relu2", "c2", "r2"),
            ForwardOperator("conv3", ("r2",), ("c3",), (plain,)),
        ),
        (
            Intermediate("r1.bits", 2, "relu1", ("r1",), 1e-4, kind="sign-bits"),
            Intermediate("p.cells", 4, "pool", ("p", "r1"), 1e-4, kind="pool-index"),
            Intermediate("r2.bits", 2, "relu2", ("r2",), 1e-4, kind="sign-bits"),
            Intermediate("r2.sparse", 34, "relu2", ("r2",), 1e-4, kind="sparse"),
            Intermediate("r2.half", 32, "relu2", ("r2",), 1e-4, kind="half"),
            Intermediate("p.half", 8, "pool", ("p",), 1e-4, kind="half"),
        ),
        (
            back("conv3 back", read("dense", "r2"), read("sparse", "r2.sparse"), read("half", "r2.half")),
            back(
                "relu2 back",
                read("output", "r2"),
                read("bits", "r2.bits"),
                read("bits in place", "r2.bits", aliased=64),
            ),
            back("conv2 back", read("dense", "p"), read("half", "p.half")),
            back("pool back", read("input", "r1"), read("cells", "p.cells")),
            back("relu1 back", read("output", "r1"), read("bits", "r1.bits")),
            back("conv1 back", read("dense")),
        ),
        10,
    )  # fmt: skip


def check(problem: Problem, plan: Solution, budget: int) -> None:
    cost = replay(problem, plan.runs)
    assert (plan.objective_s, plan.peak_bytes) == (cost.objective_s, cost.peak_bytes)
    assert cost.peak_bytes <= budget


def names(plan: Solution) -> dict[str, str]:
    found = {run.operator: run.implementation for run in plan.runs.forward}
    return found | {stage.backward: stage.implementation for stage in plan.runs.stages}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_policies_replay_and_fit_or_say_what_they_need(data: st.DataObject) -> None:
    problem = data.draw(problems(operators=6, pinned=True))
    kinds = [data.draw(st.sampled_from(KINDS)) for _ in problem.intermediates]
    problem = replace(
        problem,
        intermediates=tuple(replace(v, kind=kind) for v, kind in zip(problem.intermediates, kinds, strict=True)),
    )
    budget = problem.fixed_bytes + data.draw(st.integers(5, 60))
    for name in ("pytorch", "sqrt-n", "gist"):
        try:
            plan = plan_variant(name, problem, budget)
        except InfeasibleBudget as error:
            assert error.smallest_bytes is not None and error.smallest_bytes > budget
            plan = plan_variant(name, problem, error.smallest_bytes)
            assert plan.peak_bytes == error.smallest_bytes
            budget_given = error.smallest_bytes
        else:
            budget_given = budget
        check(problem, plan, budget_given)
        assert (plan.status, plan.bound_scope, plan.bound_s) == ("heuristic", "none", 0.0)
    for segments in range(1, len(problem.forward) + 2):
        check(problem, sqrt_n(problem, PLENTY, segments=segments), PLENTY)
    check(problem, gist(problem, PLENTY, reduced=True), PLENTY)


def test_keeping_everything_runs_each_default_once() -> None:
    problem = chain(8)
    plan = keep_all(problem, PLENTY)
    assert set(names(plan).values()) == {"fast"}
    assert not any(stage.recompute for stage in plan.runs.stages)
    kept = sum(tensor.bytes for tensor in problem.tensors[:-1])
    # The most is held when the last operator's gradient is taken, with its workspace.
    first = problem.backward[0]
    assert plan.peak_bytes == max(
        problem.fixed_bytes + kept + first.live_during_bytes + 6,
        problem.fixed_bytes + kept + problem.tensors[-1].bytes + 6,
    )
    with pytest.raises(InfeasibleBudget, match="keeping everything") as raised:
        keep_all(problem, plan.peak_bytes - 1)
    assert raised.value.smallest_bytes == plan.peak_bytes


@pytest.mark.parametrize("length", [16, 100, 400])
def test_a_chain_of_n_needs_the_root_of_n(length: int) -> None:
    problem, root = even_chain(length), math.isqrt(length)
    assert keep_all(problem, PLENTY).peak_bytes == length
    plan = sqrt_n(problem, PLENTY, segments=root)
    check(problem, plan, 2 * root + 2)
    again = [run.operator for stage in plan.runs.stages for run in stage.recompute]
    # Each segment but the last is run again once, without the tensor that was kept of it.
    assert len(again) == len(set(again)) == (root - 1) * (root - 1)


def test_the_number_of_segments_follows_the_budget() -> None:
    problem = even_chain(100)
    costs = {budget: sqrt_n(problem, budget).objective_s for budget in (20, 40, 60, 100)}
    assert costs[100] == pytest.approx(0.2)
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    assert len(set(costs.values())) >= 3
    with pytest.raises(InfeasibleBudget):
        sqrt_n(problem, 9)
    with pytest.raises(ConfigError, match="segment"):
        sqrt_n(problem, 100, segments=0)


def test_skips_over_segments_are_kept() -> None:
    problem = skip_chain(30)
    plan = sqrt_n(problem, PLENTY, segments=5)
    check(problem, plan, PLENTY)
    again = {run.operator for stage in plan.runs.stages for run in stage.recompute}
    assert again and len(again) < 30
    # What a later segment reads over a skip is there and is not made again.
    assert plan.peak_bytes <= keep_all(problem, PLENTY).peak_bytes


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(), spare=st.integers(0, 12))
def test_algorithms_afterwards_fit_and_never_cost_time(problem: Problem, spare: int) -> None:
    most = keep_all(problem, PLENTY).peak_bytes
    for budget in (most + spare, most - 2):
        try:
            plan = checkmate_d(problem, budget, Solving(gap=0.0, time_limit_s=10.0))
        except InfeasibleBudget:
            continue
        faster = fastest_algorithms(problem, budget, plan)
        check(problem, faster, budget)
        assert faster.objective_s <= plan.objective_s + 1e-12
        assert [s.backward for s in faster.runs.stages] == [s.backward for s in plan.runs.stages]
        schedules = [[r.operator for s in p.runs.stages for r in s.recompute] for p in (faster, plan)]
        assert schedules[0] == schedules[1]


@pytest.mark.parametrize("spare", range(6))
def test_each_run_takes_the_fastest_algorithm_that_fits_there(spare: int) -> None:
    """The default is the lean one here, and Checkmate's plan leaves room in some moments only."""
    problem = chain(6)
    problem = replace(
        problem,
        forward=tuple(
            replace(o, implementations=(replace(lean, workspace_bytes=2), fast))
            for o in problem.forward
            for fast, lean in [o.implementations]
        ),
        backward=tuple(
            replace(o, implementations=(replace(lean, workspace_bytes=2), fast))
            for o in problem.backward
            for fast, lean in [o.implementations]
        ),
    )
    budget = keep_all(problem, PLENTY).peak_bytes + spare
    plan, faster = checkmate_d(problem, budget, Solving(gap=0.0)), checkmate_o(problem, budget, Solving(gap=0.0))
    check(problem, faster, budget)
    assert set(names(plan).values()) == {"lean"}
    assert "fast" in names(faster).values()
    assert faster.objective_s < plan.objective_s
    # No single run could still be made faster.
    for i, run in enumerate(faster.runs.forward):
        if run.implementation == "lean":
            other = (*faster.runs.forward[:i], replace(run, implementation="fast"), *faster.runs.forward[i + 1 :])
            assert replay(problem, replace(faster.runs, forward=other)).peak_bytes > budget
    for t, stage in enumerate(faster.runs.stages):
        if stage.implementation == "lean":
            stages = (*faster.runs.stages[:t], replace(stage, implementation="fast"), *faster.runs.stages[t + 1 :])
            assert replay(problem, replace(faster.runs, stages=stages)).peak_bytes > budget


def test_the_room_of_a_run_is_its_own() -> None:
    """A default that reads an intermediate: its making is a moment of its own, which no algorithm may use."""
    runs = (ForwardImplementation("lean", 2e-3), ForwardImplementation("fast", 1e-3, 3))
    problem = Problem(
        "making",
        (Tensor("a", 4), Tensor("b", 4)),
        (ForwardOperator("first", (), ("a",), runs), ForwardOperator("second", ("a",), ("b",), runs)),
        (Intermediate("v", 1, "first", ("a",), 1e-3),),
        (BackwardOperator("back", (BackwardImplementation("only", 1e-3, ("v",)),), 0, 0),),
        0,
    )
    # Making v holds 5 bytes; the second run 9 without a workspace.
    plan = checkmate_o(problem, 9, Solving(gap=0.0))
    check(problem, plan, 9)
    assert [run.implementation for run in plan.runs.forward] == ["fast", "lean"]


def test_gist_encodes_what_no_dense_reader_needs() -> None:
    problem = network()
    plan = gist(problem, PLENTY)
    check(problem, plan, PLENTY)
    assert [run.intermediates for run in plan.runs.forward] == [
        (),
        ("r1.bits",),
        ("p.cells",),
        (),
        ("r2.bits", "r2.sparse"),
        (),
    ]
    chosen = names(plan)
    assert (chosen["relu1"], chosen["relu2"], chosen["conv1"]) == ("in-place", "in-place", "plain")
    assert chosen["relu2 back"] == "bits in place"
    assert chosen["conv2 back"] == "dense"
    assert plan.peak_bytes < keep_all(problem, PLENTY).peak_bytes
    assert not any(stage.recompute for stage in plan.runs.stages)
    with pytest.raises(InfeasibleBudget, match="Gist"):
        gist(problem, plan.peak_bytes - 1)


def test_gist_leaves_out_an_encoding_that_is_not_smaller() -> None:
    problem = network()
    large = tuple(replace(v, bytes=64) if v.id == "r1.bits" else v for v in problem.intermediates)
    assert names(gist(replace(problem, intermediates=large), PLENTY))["relu1 back"] == "output"


def test_gist_does_not_overwrite_what_an_intermediate_is_made_from() -> None:
    problem = network()
    pool = problem.forward[2]
    in_place = ForwardImplementation("in-place", 1e-3, 0, "r1", 16)
    pool = replace(pool, implementations=(*pool.implementations, in_place))
    plan = gist(replace(problem, forward=(*problem.forward[:2], pool, *problem.forward[3:])), PLENTY)
    assert (names(plan)["pool"], names(plan)["pool back"]) == ("plain", "cells")


def test_gist_takes_short_copies_only_when_asked_and_lossless_ones_first() -> None:
    problem = network()
    plan = gist(problem, PLENTY, reduced=True)
    check(problem, plan, PLENTY)
    chosen = names(plan)
    assert (chosen["conv2 back"], chosen["conv3 back"]) == ("half", "sparse")


def test_gist_without_sparse_storage_keeps_what_a_convolution_reads() -> None:
    problem = network()
    dense = replace(problem.backward[0], implementations=problem.backward[0].implementations[:1])
    plan = gist(replace(problem, backward=(dense, *problem.backward[1:])), PLENTY)
    chosen = names(plan)
    # The convolution needs the dense output anyway: bits would only come on top.
    assert (chosen["relu2 back"], chosen["relu1 back"]) == ("output", "bits")


@published
@pytest.mark.parametrize(("model", "gib"), [("vgg16", 10.0), ("unet", 8.0), ("resnet50", 8.0)])
def test_published_profiles(model: str, gib: float) -> None:
    problem = load_published(P100 / f"{model}.json")
    budget = int(gib * GIB)
    eager = keep_all(problem, PLENTY * GIB)
    # The authors took the largest batch that PyTorch could train on a GPU of 16 GiB.
    assert eager.peak_bytes < 16 * GIB
    with pytest.raises(InfeasibleBudget):
        keep_all(problem, budget)
    for name in BASELINES:
        try:
            plan = plan_variant(name, problem, budget, Solving(time_limit_s=2.0))
        except InfeasibleBudget:
            assert name in ("pytorch", "block", "sqrt-n-blocks", "selective", "gist", "gist-reduced")
            continue
        check(problem, plan, budget)
        if name in ("sqrt-n", "checkmate-d"):
            assert plan.objective_s > eager.objective_s
