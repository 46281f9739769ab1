"""A refusal names what works, also where the next search finds less than the one that refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from replaced_stages import in_both
from small_models import Residual

import monet
from monet.errors import InfeasibleBudget
from monet.pipeline import fitting, known_plans
from monet.pipeline.known_plans import Placed, recall, recall_answer, remember, remember_answer
from monet.pipeline.offloading import offloaded
from monet.pipeline.placement import placement
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.step.second_memory.offload import parse_offload


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

    in_both(monkeypatch, "plan_variant", plan_variant)


def test_a_named_budget_works_whatever_the_next_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    named = _refused(_prepared())
    again = _prepared()  # captured anew, measured by the cache
    _finds_nothing_small(monkeypatch)
    result = plan_prepared(again, named)
    assert result.plan.peak_bytes <= named and result.plan.solver["status"] == "smallest_known"
    assert _refused(again, named - 1) == named  # and no refusal names more than another has
    model = Residual()
    monet.MonetModule(model, result.plan)(torch.randn(2, 3, 8, 8)).sum().backward()


def test_the_least_memory_works_as_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    smallest = plan_smallest(_prepared(), solving=Solving(time_limit_s=5.0))
    _finds_nothing_small(monkeypatch)
    result = plan_prepared(_prepared(), smallest.plan.peak_bytes)
    assert result.plan.peak_bytes <= smallest.plan.peak_bytes


def test_with_two_memories_a_plan_for_one_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order may fit where the captured one, which copies need, does not."""
    alone = plan_prepared(_prepared(), _refused(_prepared()))
    _finds_nothing_small(monkeypatch)
    both = offloaded(_prepared(), parse_offload("bandwidth=8GB/s"))
    result = plan_prepared(both, alone.plan.peak_bytes, variant=MOVE)
    assert result.plan.peak_bytes == alone.plan.peak_bytes
    assert result.solution.objective_s == alone.solution.objective_s and result.solution.proof is None


def test_a_budget_below_what_is_counted_says_how_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan of the captured order needs more than the budget that is named: by another order, that is not so."""
    prepared = _prepared()
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None

    def said(counted_bytes: int) -> str:
        def plan_variant(*_: Any, **__: Any) -> Any:
            raise InfeasibleBudget("Counted.", fastest.peak_bytes, smallest_plan=fastest, counted_bytes=counted_bytes)

        in_both(monkeypatch, "plan_variant", plan_variant)
        with pytest.raises(InfeasibleBudget) as caught:
            plan_prepared(prepared, 1, Solving(time_limit_s=5.0))
        assert caught.value.smallest_bytes is not None
        assert (caught.value.smallest_bytes < counted_bytes) == ("by another order of the runs" in str(caught.value))
        return str(caught.value)

    assert "known to work is" in said(fastest.peak_bytes * 2)
    assert "another order" not in said(prepared.problem.fixed_bytes)


def test_no_plan_is_slower_than_one_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _prepared()
    found = plan_prepared(prepared, prepared.eager.peak_bytes, Solving(time_limit_s=5.0))
    slower = replace(found.solution, objective_s=found.solution.objective_s + 1.0)
    in_both(monkeypatch, "plan_variant", lambda *_, **__: slower)
    larger = plan_prepared(prepared, prepared.eager.peak_bytes * 2)
    assert larger.summary.objective_s == found.summary.objective_s
    assert larger.plan.steps == found.plan.steps


class _Searched(Exception):
    """A search was begun."""


def _no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_variant(*_: Any, **__: Any) -> Any:
        raise _Searched

    in_both(monkeypatch, "plan_variant", plan_variant)


def test_what_was_proven_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same code, for the same budget, gap and settings; the time that it may take does not matter."""
    first = _prepared()
    budget_bytes, solving = first.eager.peak_bytes, Solving(time_limit_s=30.0, gap=0.3)
    found = plan_prepared(first, budget_bytes, solving, reuse=True)
    assert found.summary.status == "optimal"
    _no_search(monkeypatch)
    again = plan_prepared(_prepared(), budget_bytes, replace(solving, time_limit_s=1.0), reuse=True)
    assert again.plan == found.plan and again.summary == found.summary
    others = [
        (budget_bytes + 512, solving), (budget_bytes, replace(solving, gap=0.2)),
        (budget_bytes, replace(solving, cores=1)),
    ]  # fmt: skip
    for other_bytes, other in others:
        with pytest.raises(_Searched):
            plan_prepared(first, other_bytes, other, reuse=True)
    with pytest.raises(_Searched):
        plan_prepared(first, budget_bytes, solving)
    proving = replace(solving, prove=True)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "recall_answer", lambda *_: pytest.fail("it takes longer to prove more"))
        with pytest.raises(_Searched):
            plan_prepared(first, budget_bytes, proving, reuse=True)
    with pytest.raises(_Searched):
        plan_prepared(replace(first, remembers=False), budget_bytes, solving, reuse=True)
    monkeypatch.setattr(known_plans, "code_version", lambda *_: "another")
    with pytest.raises(_Searched):
        plan_prepared(first, budget_bytes, solving, reuse=True)


def test_a_planned_model_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, images = Residual(), torch.randn(2, 3, 8, 8)
    plan = monet.plan(model, (images,), budget="100%", gap=0.3)
    _no_search(monkeypatch)
    assert monet.plan(model, (images,), budget="100%", gap=0.3) == plan
    with pytest.raises(_Searched):
        monet.plan(model, (images,), budget="100%", gap=0.3, cache=False)


@pytest.mark.parametrize("status", ["time_limit", "interrupted", "heuristic"])
def test_what_was_not_proven_is_searched_again(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _prepared()
    budget_bytes = prepared.eager.peak_bytes * 2
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    ended = replace(fastest, objective_s=fastest.objective_s * 2, status=status)
    with monkeypatch.context() as patch:
        in_both(patch, "plan_variant", lambda *_, **__: ended)
        plan_prepared(prepared, budget_bytes, reuse=True)
    _no_search(monkeypatch)
    with pytest.raises(_Searched):
        plan_prepared(prepared, budget_bytes, reuse=True)


def test_a_faster_plan_that_is_known_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = _prepared()
    budget_bytes, solving = prepared.eager.peak_bytes, Solving(time_limit_s=30.0, gap=0.3)
    found = plan_prepared(prepared, budget_bytes, solving, reuse=True)
    placed = recall(prepared.lowered, "monet", budget_bytes)
    assert placed is not None
    remember(prepared.lowered, "monet", (replace(placed[0], objective_s=placed[0].objective_s * 0.9), placed[1]))
    _no_search(monkeypatch)
    again = plan_prepared(prepared, budget_bytes, solving, reuse=True)
    assert again.summary.objective_s < found.summary.objective_s


def test_few_answers_are_kept(placed: tuple[Prepared, Placed], own_cache: Path) -> None:
    prepared, kept = placed
    for k in range(known_plans.MOST + 3):
        remember_answer(prepared.lowered, "monet", k, Solving(), kept)
    with _database(own_cache) as database:
        assert database.execute("SELECT COUNT(*) FROM search_answer").fetchone() == (known_plans.MOST,)
    assert recall_answer(prepared.lowered, "monet", 2, Solving()) is None
    assert recall_answer(prepared.lowered, "monet", known_plans.MOST + 2, Solving()) == kept


def test_only_the_best_plans_are_kept(placed: tuple[Prepared, Placed], own_cache: Path) -> None:
    """Those that are slower and larger than another go, and of many the oldest, but for the smallest."""
    prepared, (solution, laid_out) = placed

    def made(arena_bytes: int, seconds: float) -> Placed:
        layout = replace(laid_out.layout, arena_bytes=arena_bytes)
        return replace(solution, objective_s=seconds), replace(laid_out, layout=layout)

    def kept() -> list[tuple[int, float]]:
        with _database(own_cache) as database:
            found = database.execute("SELECT bytes, seconds FROM known_plan ORDER BY bytes").fetchall()
        return [(size - prepared.problem.fixed_bytes, seconds) for size, seconds in found]

    for arena_bytes, seconds in ((300, 3.0), (400, 3.5), (400, 2.0), (350, 2.0), (200, 9.0)):
        remember(prepared.lowered, "all", made(arena_bytes, seconds))
    assert kept() == [(200, 9.0), (300, 3.0), (350, 2.0)]
    fixed_bytes = prepared.problem.fixed_bytes
    for budget_bytes, seconds in ((1000, 2.0), (349, 3.0), (250, 9.0)):
        found = recall(prepared.lowered, "all", fixed_bytes + budget_bytes)
        assert found is not None and found[0].objective_s == seconds
    assert recall(prepared.lowered, "all", fixed_bytes + 199) is None
    for k in range(known_plans.MOST + 3):
        remember(prepared.lowered, "all", made(1000 + k, 1.0 - k / 100))
    assert len(kept()) <= known_plans.MOST and kept()[0] == (200, 9.0)


def test_what_is_kept_belongs_to_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    named = _refused(_prepared())
    other = prepare(Residual(), (torch.randn(4, 3, 8, 8),), {})
    _finds_nothing_small(monkeypatch)
    assert _refused(other) > named


def _database(folder: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder / "profile.sqlite3"))


@pytest.fixture(scope="module")
def placed() -> tuple[Prepared, Placed]:
    """A step and a plan of it to keep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monet.pipeline.placement.ORDER_S", 1.0)
        prepared = _prepared()
        solution = fastest_plan(prepared.problem)
        assert solution is not None
        return prepared, (solution, placement(solution.runs, prepared.lowered, 1 << 30))


def test_what_is_kept_is_recalled_exactly(placed: tuple[Prepared, Placed]) -> None:
    prepared, kept = placed
    assert recall(prepared.lowered, "all") is None
    remember(prepared.lowered, "all", kept)
    found = recall(prepared.lowered, "all")
    assert found == kept and repr(found) == repr(kept)
    assert recall(prepared.lowered, "none") is None


def _without_a_field(text: str) -> str:
    content = json.loads(text)
    del content["placement"]["layout"]["offsets"]
    return json.dumps(content)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda text: "no JSON", "no JSON"),
        (lambda text: text.encode(), "no text"),
        (lambda text: text[:-1], "no JSON"),
        (lambda text: json.dumps(["a", "pair"]), "not of type"),
        (_without_a_field, "has no field offsets"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format 2, not 1"),
    ],
)
def test_what_is_not_as_expected_is_said_and_not_used(
    own_cache: Path,
    placed: tuple[Prepared, Placed],
    broken: Callable[[str], str | bytes],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepared, kept = placed
    remember(prepared.lowered, "all", kept)
    with _database(own_cache) as database, database:
        (text,) = database.execute("SELECT plan FROM known_plan").fetchone()
        assert broken(text) != text
        database.execute("UPDATE known_plan SET plan = ?", (broken(text),))
    assert recall(prepared.lowered, "all") is None
    (line,) = caplog.messages
    assert "cannot be read" in line and reason in line and "\n" not in line


def test_a_plan_that_cannot_be_written_is_said(
    placed: tuple[Prepared, Placed], caplog: pytest.LogCaptureFixture
) -> None:
    prepared, (solution, laid_out) = placed
    wrong = replace(laid_out, layout=replace(laid_out.layout, arena_bytes=torch.tensor(1)))  # type: ignore[arg-type]
    remember(prepared.lowered, "all", (solution, wrong))
    assert "cannot be kept" in caplog.text and ".arena_bytes is tensor(1)" in caplog.text
    assert recall(prepared.lowered, "all") is None


def test_an_older_monets_pickles_are_left_alone(
    own_cache: Path, placed: tuple[Prepared, Placed], caplog: pytest.LogCaptureFixture
) -> None:
    prepared, kept = placed
    with _database(own_cache) as database, database:
        database.execute("CREATE TABLE smallest (key TEXT PRIMARY KEY, plan BLOB NOT NULL)")
        database.execute("INSERT INTO smallest VALUES (?, 'a pickle')", (known_plans._key(prepared.lowered, "all"),))
    assert recall(prepared.lowered, "all") is None
    remember(prepared.lowered, "all", kept)
    with _database(own_cache) as database:
        assert database.execute("SELECT plan FROM smallest").fetchall() == [("a pickle",)]
    assert not caplog.records


@pytest.mark.slow
def test_what_cannot_be_read_is_searched_again(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepared = _prepared()
    named = _refused(prepared)
    with _database(own_cache) as database, database:
        assert database.execute("UPDATE known_plan SET plan = 'no JSON'").rowcount > 0
    assert plan_prepared(prepared, _refused(prepared)).plan.peak_bytes <= named * 1.1
    assert "cannot be read" in caplog.text


def test_a_cache_that_cannot_be_written_is_said(
    own_cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = _prepared()
    monkeypatch.setenv("MONET_CACHE", str(own_cache / "profile.sqlite3" / "below a file"))
    assert _refused(prepared) > 1
    assert "the cache fails, and the next start finds less" in caplog.text
