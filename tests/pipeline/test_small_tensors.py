"""Tensors that are not worth a decision: few bytes together, however many there are."""

from __future__ import annotations

import pytest
import torch
from module_cases import costs_by_bytes
from torch import nn

from monet.pipeline.fitting import _leaner
from monet.pipeline.lowering import PINNED_TOGETHER, _small
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.search import Solving


def test_a_few_small_ones_beside_large_ones() -> None:
    sizes = {**{f"large{k}": 1 << 24 for k in range(8)}, **{f"small{k}": 256 for k in range(30)}}
    assert _small(sizes) == {f"small{k}" for k in range(30)}


def test_thousands_of_equal_ones_are_decided_on() -> None:
    sizes = {f"t{k}": 4096 for k in range(40_000)}
    small = _small(sizes)
    assert sum(sizes[name] for name in small) <= PINNED_TOGETHER * sum(sizes.values())


@pytest.fixture(scope="module")
def chain() -> Prepared:
    """Of so many equal layers that each is less than was once always kept."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        patched.setattr("monet.pipeline.lowering.PINNED_SHARE", 1 / 50)
        model = nn.Sequential(*(nn.Tanh() for _ in range(100)))
        return prepare(model, (torch.randn(512, 64, requires_grad=True),), {})


@pytest.mark.slow
def test_a_deep_network_of_small_tensors_is_planned_at_a_fifth(chain: Prepared) -> None:
    """It was refused, as proven, since all its tensors were small."""
    found = plan_prepared(chain, chain.eager_peak_bytes // 5, Solving(time_limit_s=3))
    assert found.plan.peak_bytes <= chain.eager_peak_bytes // 5


def test_the_smallest_plan_known_is_no_larger_than_segments(chain: Prepared) -> None:
    """Walks end without a smaller one where a network is so large that they have no time."""
    fastest = fastest_plan(chain.problem)
    assert fastest is not None
    smaller = _leaner(chain.problem, fastest)
    assert smaller.peak_bytes < fastest.peak_bytes / 2
    assert _leaner(chain.problem, smaller) is smaller
