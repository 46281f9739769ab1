"""Published P100 profiles and the plans that their authors published for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_profile import write_profile
from published_profiles import GIB, P100, published

from monet.errors import ConfigError
from monet.planner.published.profile import load_published
from monet.planner.published.solution import published_stages, runs_from_published
from monet.planner.replay import replay
from monet.planner.search import Solving, plan_problem


@published
@pytest.mark.parametrize("path", sorted((P100 / "solutions").glob("*.json")), ids=lambda path: path.stem)
def test_published_plans_replay_to_their_cost_within_their_budget(path: Path) -> None:
    document = json.loads(path.read_text())
    problem = load_published(P100 / f"{document['model']}.json")
    saved = {v.operator: v.id for v in problem.intermediates}
    found = replay(problem, runs_from_published(document["stages"], saved))
    assert found.peak_bytes <= document["budget_gib"] * GIB
    # Their own sum over the same numbers; in-place savers are counted a little differently.
    assert found.objective_s * 1e3 == pytest.approx(document["json_ms"], rel=5e-4)


@published
@pytest.mark.parametrize(
    ("model", "gib"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in (("vgg16", 7.0), ("unet", 6.0))), ("resnet50", 7.0)],
)
def test_plans_fit(model: str, gib: float) -> None:
    problem = load_published(P100 / f"{model}.json")
    plan = plan_problem(problem, int(gib * GIB), Solving(time_limit_s=6.0))
    assert replay(problem, plan.runs).peak_bytes == plan.peak_bytes <= gib * GIB
    assert plan.bound_scope == "full" or plan.bound_scope.startswith("window 16 + ")
    assert plan.bound_s > 0
    stages = published_stages(problem, plan.runs)
    saved = {v.operator: v.id for v in problem.intermediates}
    assert replay(problem, runs_from_published(stages, saved)).objective_s == pytest.approx(plan.objective_s)


@published
@pytest.mark.slow
@pytest.mark.parametrize(("model", "gib"), [("vgg16", 5.5), ("unet", 5.0), ("resnet50", 5.0)])
def test_tight_plans_are_as_good_as_a_day_of_gurobi(model: str, gib: float) -> None:
    reference = json.loads((P100 / "reference.json").read_text())["runs"][model]
    theirs = next(r["objective_ms"] for r in reference if r["variant"] == "all" and r["budget_gib"] == gib)
    problem = load_published(P100 / f"{model}.json")
    plan = plan_problem(problem, int(gib * GIB), Solving(time_limit_s=120.0, gap=1e-3))
    assert plan.objective_s * 1e3 <= theirs


@pytest.mark.parametrize(
    ("op", "kind"),
    [("_convolution", "convolution"), ("addmm", "matmul"), ("relu_", ""), ("mm_and_more", ""), (None, "")],
)
def test_kinds(op: str | None, kind: str, tmp_path: Path) -> None:
    """By the name of aten's operator, which a document may leave out."""
    path = write_profile(tmp_path / "chain.json")
    document = json.loads(path.read_text())
    document["forward"][1].pop("op")
    if op is not None:
        document["forward"][1]["op"] = op
    path.write_text(json.dumps(document))
    assert [o.kind for o in load_published(path).forward[:3]] == ["convolution", kind, "convolution"]


def test_other_documents_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"format": "something else"}')
    with pytest.raises(ConfigError, match="monet-profile-1"):
        load_published(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_published(tmp_path / "missing.json")
