"""``monet show``: a summary that fits a terminal, and files that are there whole or not at all."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from click.testing import CliRunner, Result
from large_plan import large_plan
from random_plans import random_plan

from monet.base.amounts import format_bytes
from monet.cli.commands.show import summary_lines
from monet.cli.main import program
from monet.models.examples import tiny_resnet
from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan


def show(*arguments: object) -> Result:
    return CliRunner().invoke(program, ["show", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "random.plan.json"
    plan = random_plan(5)
    replace(plan, model={"name": "Net", "fingerprint": "f"}).save(path)
    return path


def test_what_it_says(saved: Path) -> None:
    done = show(saved)
    assert done.exit_code == 0, done.output
    plan = Plan.load(saved)
    lines = done.output.splitlines()
    assert lines[0] == "plan of Net (optimal)"
    for name, amount in [("budget", plan.budget_bytes), ("peak", plan.peak_bytes), ("  arena", plan.arena_bytes)]:
        assert any(line.startswith(f"{name:<11}{format_bytes(amount)}") for line in lines), name
    for kind in {step.kind for step in plan.steps}:
        assert f"{sum(step.kind == kind for step in plan.steps)} {kind}" in done.output
    assert "at the peak: " in done.output


@pytest.mark.parametrize("plan", [*map(random_plan, range(20)), large_plan(8000)])
def test_it_fits_a_terminal(plan: Plan) -> None:
    lines = summary_lines(plan)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_it_fits_a_terminal_whatever_is_in_the_plan() -> None:
    """Names that are long or would move the cursor, many fixed parts, and all the rows that there can be."""
    fixed = {f"a rather long name of a part {k}": 10**9 for k in range(40)}
    long = "\x1b[2J" + 50 * "x"
    kinds = ("forward", "recompute", "backward", "update", "write", "read", "wait")
    steps = tuple(PlanStep(kind, long, long, {}, {}, (), (), k) for k, kind in enumerate(kinds))
    buffers = tuple(Buffer(k, long, 10**12, k * 10**12, 0, 7, 0, 6) for k in range(9))
    solver = {
        "baseline_s": 1e4,
        "objective_s": 2e4,
        "bound_s": 1e4,
        "gap": 0.5,
        "bound_scope": 90 * "y",
        "status": long,
    }
    plan = Plan(
        10**14, 9 * 10**12, 10**12, 40 * 10**9, fixed, steps, buffers, 10**12, {"name": 100 * "z"},
        solver={**solver, "eager_peak_bytes": 10**14},
    )  # fmt: skip
    lines = summary_lines(plan)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80 and all(line.isprintable() for line in lines)
    assert sum(line.startswith("  ") and "1.000 TB" in line for line in lines) == 5


def test_it_writes_all_files(saved: Path, tmp_path: Path) -> None:
    names = {"html": "a.html", "snapshot": "a.pickle", "perfetto": "a.json", "graph": "a.graphml"}
    done = show(saved, *(f"--{option}={tmp_path / name}" for option, name in names.items()))
    assert done.exit_code == 0, done.output
    for name in names.values():
        assert f"wrote {tmp_path / name}" in done.output
    assert "lengths are ticks" in done.output
    assert {path.name for path in tmp_path.iterdir()} == {saved.name, *names.values()}
    plan = Plan.load(saved)
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert pickle.loads((tmp_path / "a.pickle").read_bytes())["device_traces"][0]
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert len(nx.read_graphml(tmp_path / "a.graphml")) == len(plan.steps)


def test_a_trace_gives_seconds(saved: Path, tmp_path: Path) -> None:
    plan = Plan.load(saved)
    steps = [
        {
            "kind": s.kind,
            "node": s.node,
            "implementation": s.implementation,
            "where": "",
            "predicted_s": 1,
            "measured_s": 2,
        }
        for s in plan.steps
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"steps": steps}))
    done = show(saved, "--trace", tmp_path / "trace.json", "--perfetto", tmp_path / "timeline.json")
    assert done.exit_code == 0 and "lengths are predicted seconds" in done.output
    (tmp_path / "trace.json").write_text(json.dumps({"steps": steps[1:]}))
    done = show(saved, "--trace", tmp_path / "trace.json", "--perfetto", tmp_path / "other.json")
    assert done.exit_code == 2 and "another plan" in done.output and not (tmp_path / "other.json").exists()


def test_bad_input_is_an_error(saved: Path, tmp_path: Path) -> None:
    done = show(tmp_path / "none.plan.json")
    assert done.exit_code == 1 and "none.plan.json" in done.output and "Traceback" not in done.output
    damaged = tmp_path / "damaged.plan.json"
    damaged.write_text(saved.read_text().replace('"Net"', '"Not"'))
    done = show(damaged, "--html", tmp_path / "page.html")
    assert done.exit_code == 1 and "checksum" in done.output and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("option", ["--html", "--snapshot", "--perfetto", "--graph"])
def test_files_that_cannot_be_written(saved: Path, tmp_path: Path, option: str) -> None:
    before = saved.read_bytes()
    for target in (tmp_path, tmp_path / "none" / "file", saved):
        done = show(saved, option, target)
        assert done.exit_code == 2 and option in done.output, done.output
    assert saved.read_bytes() == before


def test_a_plan_that_does_not_say_of_which_model(saved: Path) -> None:
    done = show(saved, "--config", "tiny.yaml", "--quiet")
    assert done.exit_code == 1 and "which model" in done.output and "Traceback" not in done.output


def test_options_that_contradict_each_other(saved: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    assert show(saved, "--html", same, "--graph", same).exit_code == 2 and not same.exists()


def test_lines_and_modules_of_a_model(tmp_path: Path) -> None:
    """From the configuration; an operator without parameters comes after one that has some."""
    path, page = tmp_path / "tiny.plan.json", tmp_path / "tiny.html"
    made = CliRunner().invoke(
        program, ["plan", "tiny.yaml", "--budget", "95%", "--time-limit", "5", "--quiet", "--output", str(path)]
    )
    assert made.exit_code == 0, made.output
    done = show(path, "--config", "tiny.yaml", "--html", page, "--graph", tmp_path / "tiny.graphml", "--quiet")
    assert done.exit_code == 0, done.output
    names = dict(tiny_resnet().named_modules())
    nodes = [data for _, data in nx.read_graphml(tmp_path / "tiny.graphml").nodes(data=True)]
    # Of a bias the gradient is a sum of the output's gradient, and reads nothing else.
    assert [data["node"] for data in nodes if "module" not in data] == ["sum_1"]
    nodes = [data for data in nodes if "module" in data]
    for data in nodes:
        module = names[data["module"].removeprefix("after ")]
        if data["node"].startswith("convolution"):
            assert isinstance(module, torch.nn.Conv2d) and "after" not in data["module"]
            assert data["kind"] != "forward" or "conv.py" in data["line"]
        if data["node"].startswith(("relu", "threshold_backward")):
            assert data["module"].startswith("after ")
    assert {data["module"] for data in nodes} >= {
        name for name, module in names.items() if list(module.parameters(False))
    }
    assert "conv.py" in page.read_text()
    (tmp_path / "wide.yaml").write_text(
        "model: monet.models.examples:tiny_resnet\nkwargs: {width: 8}\ninputs: [{shape: [8, 3, 32, 32]}]\n"
    )
    other = show(path, "--config", tmp_path / "wide.yaml", "--html", tmp_path / "wide.html", "--quiet")
    assert other.exit_code == 1 and "plan" in other.output and not (tmp_path / "wide.html").exists()
