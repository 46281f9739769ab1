"""Rates: curves through measurements, rates as people write them, and what a machine's own kernels give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from monet.errors import ConfigError
from monet.ops.estimating.rates import LEAST_S, Curve, Rates, parse_rates
from monet.ops.estimating.work import Work
from monet.pipeline import calibration


def test_a_curve_is_straight_on_logarithms() -> None:
    curve = Curve(((1.0, 8.0), (4.0, 2.0), (16.0, 2.0)))
    assert curve.at(2.0) == pytest.approx(4.0)
    assert (curve.at(4.0), curve.at(8.0), curve.at(100.0), curve.at(0.1)) == pytest.approx((2.0, 2.0, 2.0, 8.0))


def test_few_bytes_take_as_long_as_the_fewest_that_were_measured() -> None:
    curve = Curve(((1000.0, 1e-9), (2000.0, 1e-9)), constant_below=True)
    assert 10 * curve.at(10.0) == pytest.approx(1000 * curve.at(1000.0))


def test_of_measurements_at_one_place_the_fastest_counts() -> None:
    curve = Curve.through([(100.0, 3.0), (101.0, 1.0), (99.0, 2.0), (0.0, 0.5)])
    assert curve.points == ((101.0, 1.0),)


def test_measured_work_takes_what_was_measured() -> None:
    found = [
        (Work("product", 1e9, 10**6), 0.01),
        (Work("product", 8e9, 10**6), 0.04),
        (Work("sum", None, 10**6), 0.001),
        (Work("empty", None, 0), 0.1),
    ]
    rates = Rates.measured(found)
    for work, seconds in found[:3]:
        assert rates.seconds(work) == pytest.approx(seconds)
    assert rates.seconds(Work("sum", None, 0)) == LEAST_S
    # A kind that nobody measured is as fast as any other.
    assert rates.seconds(Work("another product", 1e9, 10**6)) == pytest.approx(0.01)
    assert rates.seconds(Work("another sum", None, 10**6)) == pytest.approx(0.001)
    assert rates.origin != Rates.measured(found[1:]).origin


def test_rates_as_people_write_them() -> None:
    rates = parse_rates("200GFLOPS, 20GB/s")
    assert rates == parse_rates("20e9B/s,0.2TFLOP/s") or rates.origin == parse_rates("20e9B/s,0.2TFLOP/s").origin
    assert rates.seconds(Work("copy", None, 20 * 10**9)) == pytest.approx(1.0)
    assert rates.seconds(Work("product", 2e11, 10**6)) == pytest.approx(1.0)
    assert rates.seconds(Work("thin product", 1e6, 20 * 10**9)) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "20GB/s", "20GB/s,30GB/s", "300GFLOPS,20GB", "fast,20GB/s", "0GFLOPS,20GB/s"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="300GFLOPS,20GB/s"):
        parse_rates(text)


def test_calibration_knows_the_kinds_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one small model instead of its own."""
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 8))
    monkeypatch.setattr(calibration, "probes", lambda: ((model, (torch.empty(4, 16, 8, 8),)),))
    rates = calibration.calibrated_rates()
    assert {"aten.convolution.default, windows", "aten.addmm.default", "aten.mm.default"} <= rates.compute.keys()
    assert {"aten.relu.default", "aten.native_batch_norm.default"} <= rates.memory.keys()
    assert all(rate > 0 for curve in (*rates.compute.values(), *rates.memory.values()) for _, rate in curve.points)
