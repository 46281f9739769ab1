"""Costs of a step's own operators, and what follows for those that it did not run."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from torch import nn

from monet.ops.measuring.in_place import as_in_step
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import signature
from monet.pipeline.preparation import prepare


def test_what_did_not_run_is_corrected_by_what_did() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    lowered = prepare(model, (torch.empty(4, 8),), {}).lowered
    profile, offers = lowered.profile, lowered.catalogue
    products = {
        signature(run, offers.values) for run in implementations(offers) if run.call_name == "aten.addmm.default"
    }
    others = profile.measurements.keys() - products
    first, *rest = sorted(products)
    assert rest and others
    alone = {key: found.time_s for key, found in profile.measurements.items()}
    one = sorted(others)[0]
    seconds = {first: [2 * alone[first], 4 * alone[first]], one: [0.5 * alone[one]]}
    found = as_in_step(profile, offers, seconds)
    times = {key: measured.time_s for key, measured in found.measurements.items()}
    assert times[first] == pytest.approx(3 * alone[first]) and times[one] == pytest.approx(0.5 * alone[one])
    assert all(times[key] == pytest.approx(3 * alone[key]) for key in rest)
    usual = median([3.0, 0.5])
    names = {signature(run, offers.values): run.call_name for run in implementations(offers)}
    apart = [key for key in others if names[key] != names[one]]
    assert apart and all(times[key] == pytest.approx(usual * alone[key]) for key in apart)
    assert found.environment == profile.environment
    assert {key: m.requests for key, m in found.measurements.items()} == {
        key: m.requests for key, m in profile.measurements.items()
    }


def test_nothing_timed_changes_nothing() -> None:
    lowered = prepare(nn.Sequential(nn.Linear(8, 4)), (torch.empty(4, 8),), {}).lowered
    assert as_in_step(lowered.profile, lowered.catalogue, {}).measurements == lowered.profile.measurements
