"""A refusal names what works, also where the next search finds less than the one that refused."""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Residual

import monet
from monet.errors import InfeasibleBudget
from monet.pipeline import fitting
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.search import Solving


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONET_CACHE", str(tmp_path))
    return tmp_path


def _prepared() -> Prepared:
    torch.manual_seed(0)
    return prepare(Residual(), (torch.randn(2, 3, 8, 8),), {})


def _refused(prepared: Prepared, budget_bytes: int = 1) -> int:
    with pytest.raises(InfeasibleBudget) as caught:
        plan_prepared(prepared, budget_bytes, Solving(time_limit_s=5.0))
    assert caught.value.smallest_bytes is not None
    return caught.value.smallest_bytes


def _finds_nothing_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were no time: the only plan known keeps everything."""

    def plan_variant(_: str, problem: Any, __: int, *___: Any, **options: Any) -> Any:
        found = fastest_plan(problem)
        assert found is not None
        raise InfeasibleBudget("No plan was found.", found.peak_bytes, smallest_plan=found)

    monkeypatch.setattr(fitting, "plan_variant", plan_variant)


def test_a_named_budget_works_whatever_the_next_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    named = _refused(_prepared())
    again = _prepared()  # captured anew, measured by the cache
    _finds_nothing_small(monkeypatch)
    result = plan_prepared(again, named)
    assert result.plan.peak_bytes <= named and result.plan.solver["status"] == "smallest_known"
    assert _refused(again, named - 1) == named  # and no refusal names more than another has
    model = Residual()
    monet.MonetModule(model, result.plan)(torch.randn(2, 3, 8, 8)).sum().backward()


def test_what_is_kept_belongs_to_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    named = _refused(_prepared())
    other = prepare(Residual(), (torch.randn(4, 3, 8, 8),), {})
    _finds_nothing_small(monkeypatch)
    assert _refused(other) > named


@pytest.mark.parametrize("broken", [b"no pickle", pickle.dumps(("a", "pair"))])
def test_what_cannot_be_read_is_searched_again(
    own_cache: Path, broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = _prepared()
    named = _refused(prepared)
    with sqlite3.connect(own_cache / "profile.sqlite3") as database:
        assert database.execute("UPDATE smallest SET plan = ?", (broken,)).rowcount == 1
    assert plan_prepared(prepared, _refused(prepared)).plan.peak_bytes <= named * 1.1
    assert ("cannot be read" in caplog.text) == (broken == b"no pickle")


def test_a_cache_that_cannot_be_written_is_said(
    own_cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = _prepared()
    monkeypatch.setenv("MONET_CACHE", str(own_cache / "profile.sqlite3" / "below a file"))
    assert _refused(prepared) > 1
    assert "cannot be kept" in caplog.text
