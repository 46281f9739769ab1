"""Whole trainings, planned and eager: the same loss curve bit by bit where plans are exact, statistically otherwise.

The trainings and the statistics are those of ``benchmarks/bench_convergence.py``, whose text says what the test is.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from repository import ROOT

pytestmark = pytest.mark.usefixtures("hasty_orders")

CASES = ["tiny ResNet, SGD with momentum", "tiny GPT, AdamW"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark as a module, on one thread as there."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module("bench_convergence")
    torch.set_num_threads(threads)


def _assert_exact(bench: Any, name: str, steps: int, time_limit_s: float) -> None:
    case = bench.CASES[name]
    eager = case.model(0)
    losses = bench.train(case, eager, 0, steps)
    assert bench.final(losses) < 0.9 * losses[0]  # it learns
    for row in bench.exact_rows(case, eager, losses, steps, time_limit_s):
        assert row["steps_with_another_loss"] == 0 and row["weights_equal"], row
        assert row["recomputed"] > 0 and row["peak_bytes"] < row["eager_peak_bytes"], row


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_thirty_steps_have_eagers_losses(bench: Any, name: str) -> None:
    """By exact plans for about the smallest budget, as a module and as a whole step."""
    _assert_exact(bench, name, 30, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_three_hundred_steps_have_eagers_losses(bench: Any, name: str) -> None:
    _assert_exact(bench, name, 300, 20.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_three_hundred_steps_are_statistically_the_same(bench: Any, name: str) -> None:
    row, _ = bench.run(name, bench.CASES[name], 300, 5)
    assert row["statistically_the_same"], {k: v for k, v in row.items() if k != "curves"}


def test_the_statistics_tell_trainings_apart(bench: Any) -> None:
    """A training that ends a little off everywhere is not the same."""
    rows = {"eager": [1.0, 1.2, 1.1], "planned": [1.0, 1.2, 1.1], "rounded": [1.01, 1.19, 1.1]}
    curves = {name: [[value] * 10 for value in finals] for name, finals in rows.items()}
    assert bench.compare(curves)["statistically_the_same"]
    curves["planned"] = [[value + 0.05] * 10 for value in rows["eager"]]  # five times what a rounding does
    assert not bench.compare(curves)["statistically_the_same"]
    curves["planned"] = [[value + 0.25] * 10 for value in rows["eager"]]
    curves["rounded"] = [[value + 0.3] * 10 for value in rows["eager"]]  # chaotic, but beyond the seeds' spread
    assert not bench.compare(curves)["statistically_the_same"]
