"""MONeT's ablation: which implementations each variant leaves, and that more freedom never costs time."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner_problems import problems
from published_profiles import GIB, P100, published

from monet.errors import ConfigError, InfeasibleBudget
from monet.planner.ablation import ALLOWED, restrict
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
from monet.planner.schedules import ABLATION, BASELINES, MOVING, VARIANTS, plan_variant
from monet.planner.search import Solving, plan_problem

SINGLE = [name for name in ALLOWED if name not in ("none", "monet")]


def every_kind() -> Problem:
    """A convolution and a ReLU with one implementation of each kind, under names that say nothing."""
    forward = (
        ForwardOperator("conv", (), ("x",), (ForwardImplementation("a", 0.003), ForwardImplementation("b", 0.002, 5))),
        ForwardOperator(
            "relu",
            ("x",),
            ("y",),
            (ForwardImplementation("a", 0.002), ForwardImplementation("b", 0.001, 0, "x", 8)),
        ),
    )
    intermediates = (
        Intermediate("bits", 1, "relu", ("y",), 0.001, kind="sign-bits"),
        Intermediate("compressed", 4, "relu", ("y",), 0.001, kind="sparse"),
        Intermediate("short", 4, "relu", ("y",), 0.001, kind="half"),
    )
    backward = (
        BackwardOperator(
            "relu back",
            (
                BackwardImplementation("a", 0.002, ("x",)),
                BackwardImplementation("b", 0.002, ("x",), 3),
                BackwardImplementation("c", 0.002, ("y",)),
                BackwardImplementation("d", 0.002, ("bits",)),
                BackwardImplementation("e", 0.002, ("bits",), aliased_bytes=8),
                BackwardImplementation("f", 0.002, ("x",), aliased_bytes=8),
                BackwardImplementation("g", 0.002, ("compressed",)),
                BackwardImplementation("h", 0.002, ("short",)),
            ),
            8,
            16,
        ),
    )
    return Problem("kinds", (Tensor("x", 8), Tensor("y", 8)), forward, intermediates, backward, 1)


@pytest.mark.parametrize(
    ("variant", "conv", "relu", "back", "made"),
    [
        ("none", "a", "a", "a", ()),
        ("conv", "ab", "a", "ab", ()),
        ("output-activated", "a", "a", "ac", ()),
        ("intermediate-activated", "a", "a", "ad", ("bits",)),
        ("in-place", "a", "ab", "af", ()),
        ("monet", "ab", "ab", "abcdef", ("bits",)),
    ],
)
def test_kinds_are_told_apart_by_structure(
    variant: str, conv: str, relu: str, back: str, made: tuple[str, ...]
) -> None:
    found = restrict(every_kind(), variant)
    names = ["".join(q.name for q in operator.implementations) for operator in found.forward]
    names += ["".join(q.name for q in stage.implementations) for stage in found.backward]
    assert names == [conv, relu, back]
    assert tuple(v.id for v in found.intermediates) == made


def test_a_problem_without_encodings_is_left_as_it_is() -> None:
    problem = restrict(every_kind(), "monet")
    assert restrict(problem, "monet") is problem


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'fast'.*none, conv.*monet"):
        restrict(every_kind(), "fast")
    with pytest.raises(ConfigError, match=r"'fast'.*none.*pytorch.*gist"):
        plan_variant("fast", every_kind(), 100)


def test_the_registry_has_every_name_once() -> None:
    assert list(VARIANTS) == [*ABLATION, *MOVING, *BASELINES]
    assert set(ABLATION) == set(ALLOWED)
    assert all(name == found.name and found.description for name, found in VARIANTS.items())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_more_freedom_never_costs_time(data: st.DataObject) -> None:
    problem = data.draw(problems())
    budget = problem.fixed_bytes + data.draw(st.integers(5, 40))
    best: dict[str, float] = {}
    for name in ALLOWED:
        try:
            plan = plan_variant(name, problem, budget, Solving(window=None, gap=0.0, time_limit_s=20.0))
        except InfeasibleBudget:
            best[name] = float("inf")
            continue
        # A plan of the restricted problem is one of the whole, at the same cost.
        cost = replay(problem, plan.runs)
        assert (cost.objective_s, cost.peak_bytes) == (plan.objective_s, plan.peak_bytes)
        best[name] = plan.objective_s
    for name in SINGLE:
        assert best["monet"] <= best[name] + 1e-7
        assert best[name] <= best["none"] + 1e-7


@published
@pytest.mark.parametrize(
    ("variant", "theirs", "relu_reads", "gib"),
    [
        ("none", "checkmate", "output", 10.0),
        ("none", "checkmate", "input", 10.0),
        ("conv", "conv", "output", 10.0),
        ("output-activated", "output", "input", 8.0),
        ("intermediate-activated", "intermediate", "input", 8.0),
        ("in-place", "inplace_only", "input", 8.0),
    ],
)
@pytest.mark.sampled(3)
def test_variants_cost_what_was_published(variant: str, theirs: str, relu_reads: str, gib: float) -> None:
    reference = json.loads((P100 / "reference.json").read_text())["runs"]["vgg16"]
    objective_ms = next(r["objective_ms"] for r in reference if r["variant"] == theirs and r["budget_gib"] == gib)
    problem = restrict(load_published(P100 / "vgg16.json", relu_reads=relu_reads), variant)
    plan = plan_problem(problem, int(gib * GIB), Solving(time_limit_s=6.0, gap=5e-3))
    assert plan.objective_s * 1e3 == pytest.approx(objective_ms, rel=1.2e-2)
