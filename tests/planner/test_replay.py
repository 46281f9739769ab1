"""Replay: exact bytes on a problem counted by hand, and every corrupted plan is rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monet.errors import InvalidPlan
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.replay import replay
from monet.planner.solution import Run, Runs, Stage

# a (100) → relu b (100, in place possible, sign bits v of 10) → norm: y (50), statistics s (1, pinned)
HAND = Problem(
    "by hand",
    (Tensor("a", 100), Tensor("b", 100), Tensor("y", 50), Tensor("s", 1, pinned=True)),
    (
        ForwardOperator("conv", (), ("a",), (ForwardImplementation("plain", 1.0, 7),)),
        ForwardOperator(
            "relu",
            ("a",),
            ("b",),
            (ForwardImplementation("plain", 0.1), ForwardImplementation("inplace", 0.2, 0, "a", 100)),
        ),
        ForwardOperator(
            "norm",
            ("b",),
            ("y", "s"),
            (ForwardImplementation("plain", 0.5, 3, None, 0, 0.4, 2, ("s",)),),
        ),
    ),
    (Intermediate("v", 10, "relu", ("b",), 0.05, 20),),
    (
        BackwardOperator("norm'", (BackwardImplementation("plain", 0.6, ("y", "s"), 5),), 50, 150),
        BackwardOperator(
            "relu'",
            (BackwardImplementation("output", 0.1, ("b",), 0, 100), BackwardImplementation("bits", 0.2, ("v",))),
            100,
            200,
        ),
        BackwardOperator("conv'", (BackwardImplementation("plain", 1.0, ()),), 100, 100),
    ),
    1000,
)

KEEP_ALL = Runs(
    (Run("conv", "plain"), Run("relu", "inplace"), Run("norm", "plain")),
    (Stage((), "norm'", "plain"), Stage((), "relu'", "output"), Stage((), "conv'", "plain")),
)
RECOMPUTE = Runs(
    (Run("conv", "plain"), Run("relu", "inplace", ("v",)), Run("norm", "plain")),
    (
        Stage(
            (Run("conv", "plain"), Run("relu", "inplace"), Run("norm", "plain")),
            "norm'",
            "plain",
        ),
        Stage((), "relu'", "bits"),
        Stage((), "conv'", "plain"),
    ),
)


def test_bytes_of_every_moment_when_everything_is_kept() -> None:
    found = replay(HAND, KEEP_ALL)
    assert [moment.bytes - 1000 for moment in found.moments] == [
        107,  # a, workspace
        100,  # a becomes b
        154,  # b, y, s, workspace
        50 + 100 + 100 + 51 + 5,  # gradients, b, y and s, workspace
        200 - 100 + 100,  # gradients, one in the other's place, b
        100,
    ]
    assert found.peak_bytes == 1306
    assert found.objective_s == pytest.approx(1.0 + 0.2 + 0.5 + 0.6 + 0.1 + 1.0)


def test_bytes_of_every_moment_with_recomputation() -> None:
    found = replay(HAND, RECOMPUTE)
    assert [moment.bytes - 1000 for moment in found.moments] == [
        107,
        100,
        130,  # b, bits, workspace of making them
        100 + 10 + 51 + 3,  # b, bits, y, s; y is not read before it is made again
        50 + 10 + 1 + 107,  # gradient, bits, s, a, workspace
        50 + 10 + 1 + 100,
        50 + 10 + 1 + 100 + 50 + 2,  # s is read, not made again
        150 + 10 + 51 + 5,
        200 + 10,
        100,
    ]
    assert found.objective_s == pytest.approx(1.0 + 0.2 + 0.05 + 0.5 + 1.0 + 0.2 + 0.4 + 0.6 + 0.2 + 1.0)


def edit(stage: int, change: Callable[[Stage], Stage]) -> Runs:
    stages = list(RECOMPUTE.stages)
    stages[stage] = change(stages[stage])
    return replace(RECOMPUTE, stages=tuple(stages))


CORRUPTED = {
    "a forward run is missing": replace(RECOMPUTE, forward=RECOMPUTE.forward[1:]),
    "forward runs are swapped": replace(RECOMPUTE, forward=tuple(reversed(RECOMPUTE.forward))),
    "a stage is missing": replace(RECOMPUTE, stages=RECOMPUTE.stages[:-1]),
    "stages are swapped": replace(RECOMPUTE, stages=tuple(reversed(RECOMPUTE.stages))),
    "an input is not recomputed": edit(0, lambda s: replace(s, recompute=s.recompute[1:])),
    "a recomputation is out of order": edit(0, lambda s: replace(s, recompute=tuple(reversed(s.recompute)))),
    "a recomputation runs twice": edit(0, lambda s: replace(s, recompute=(s.recompute[0], *s.recompute))),
    "an unknown operator is recomputed": edit(0, lambda s: replace(s, recompute=(Run("pool", "plain"),))),
    "an unknown implementation": edit(0, lambda s: replace(s, recompute=(Run("conv", "fft"),))),
    "an unknown backward implementation": edit(0, lambda s: replace(s, implementation="fft")),
    "an intermediate of another operator": edit(0, lambda s: replace(s, recompute=(Run("conv", "plain", ("v",)),))),
    "the bits were never made": replace(
        RECOMPUTE, forward=(RECOMPUTE.forward[0], Run("relu", "inplace"), RECOMPUTE.forward[2])
    ),
    # After the in-place run a is gone; only relu's input would be needed again.
    "an overwritten tensor is read": edit(
        0, lambda s: replace(s, recompute=(Run("relu", "plain"), Run("norm", "plain")))
    ),
}


@pytest.mark.parametrize("what", CORRUPTED)
def test_corrupted_plans_are_rejected(what: str) -> None:
    with pytest.raises(InvalidPlan):
        replay(HAND, CORRUPTED[what])


def test_messages_say_what_and_where() -> None:
    with pytest.raises(InvalidPlan, match=r"'relu'.* in stage 0 reads 'a', which forward 'relu' \(inplace\) overwrote"):
        replay(HAND, CORRUPTED["an overwritten tensor is read"])


def test_operators_that_cannot_be_recomputed_are_not() -> None:
    fixed = replace(HAND, forward=(replace(HAND.forward[0], recomputable=False), *HAND.forward[1:]))
    with pytest.raises(InvalidPlan, match="cannot be recomputed"):
        replay(fixed, RECOMPUTE)
