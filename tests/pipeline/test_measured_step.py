"""A measured step as a file: planned without the model, refused where it is not what was written."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from module_cases import CASES, case_model, costs_by_bytes, step_seconds

import monet
from monet.base.files.frozen_json import encode
from monet.base.files.step_file import read_step_file, write_step_file
from monet.base.measurement import Measurement, Request
from monet.capture.captured_text import graph_data, graph_of
from monet.cli.main import program
from monet.errors import ConfigError, PlanMismatch
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering
from monet.pipeline.measured_step import read_step, write_step
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.search import Solving
from monet.plans.format import CUDA_ALIGNMENT
from monet.plans.plan import Plan

QUICK = Solving(time_limit_s=5.0)


@pytest.fixture(autouse=True)
def made_up_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)


def prepared_case(name: str, offering: Offering = Offering(), preparing: Preparing | None = None) -> Prepared:
    args, kwargs = CASES[name][1](0)
    return prepare(case_model(name), args, kwargs, preparing, offering)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_step(prepared_case("residual"), Offering(), tmp_path / "residual.step.json")
    return tmp_path / "residual.step.json"


@pytest.mark.parametrize("reserve", [0, 1 << 20])
@pytest.mark.parametrize("exact", [False, True])
def test_a_plan_from_the_file_is_the_plan_from_the_model(tmp_path: Path, exact: bool, reserve: int) -> None:
    """Also what eager takes, which shares of it are budgets of."""
    written = prepared_case("residual", Offering(exact))
    write_step(written, Offering(exact), tmp_path / "step.json")
    here, there = (
        prepared_case("residual", Offering(exact), Preparing(reserve)),
        read_step(tmp_path / "step.json", reserve),
    )
    assert there.problem == here.problem
    assert there.eager.runs == here.eager.runs and there.eager.peak_bytes == here.eager.peak_bytes
    assert there.eager_peak_bytes == here.eager_peak_bytes
    assert (there.model, there.environment) == (here.model, here.environment)
    assert there.lowered.fixed == here.lowered.fixed


def test_its_plan_runs_where_it_was_measured(path: Path, tmp_path: Path) -> None:
    plan = plan_smallest(read_step(path), None, QUICK).plan
    plan.save(tmp_path / "plan.json")
    model = case_model("residual")
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, Plan.load(tmp_path / "plan.json"))
    for seed in range(2):
        args, kwargs = CASES["residual"][1](seed)
        found = []
        for module in (eager, planned):
            torch.manual_seed(seed)
            module.zero_grad(set_to_none=True)
            module(*args, **kwargs).square().sum().backward()
            found.append([p.grad for p in module.parameters() if p.grad is not None])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # implementations that add up in another order


def on_cuda(path: Path) -> Path:
    """The same step as if a GPU had measured it: every tensor there, costs by bytes."""
    content = read_step_file(path)
    graph = graph_of(content["graph"])
    device = torch.device("cuda:0")
    graph = replace(graph, values={name: replace(v, device=device) for name, v in graph.values.items()})
    offers = catalogue(graph)
    content["graph"] = graph_data(graph)
    content["guards"] = [[g.scale, g.shift, g.least] for i in implementations(offers) if (g := i.guard) is not None]
    content["environment"] = {
        **content["environment"],
        "profile": "torch 2.13.0|cuda H100|threads 8|v2",
        "device": "cuda:0",
    }
    content["measurements"] = {
        signature(i, offers.values): encode(made_up(i, offers), Measurement) for i in implementations(offers)
    }
    write_step_file(path, content)
    return path


def made_up(implementation: Implementation, offers: Catalogue) -> Measurement:
    if implementation.overwrites is not None:
        return Measurement(step_seconds(implementation, offers), (), 1)
    made = [(n, name) for n, name in enumerate(implementation.outputs) if name is not None]
    requests = tuple(Request(offers.values[name].storage_bytes, 0, None, n) for n, name in made)
    return Measurement(step_seconds(implementation, offers), requests, 1)


def test_a_step_of_a_gpu_is_planned_without_one(path: Path) -> None:
    """And its plan is refused here by a sentence."""
    prepared = read_step(on_cuda(path))
    assert prepared.lowered.catalogue.graph.device.type == "cuda"
    plan = plan_prepared(prepared, plan_smallest(prepared, None, QUICK).plan.budget_bytes, QUICK).plan
    assert plan.environment["device"] == "cuda:0"
    assert plan.peak_bytes < prepared.full_bytes
    assert all(buffer.offset % CUDA_ALIGNMENT == 0 for buffer in plan.buffers)
    with pytest.raises(PlanMismatch, match="H100"):
        monet.MonetModule(case_model("residual"), plan)


def changed(path: Path, change: Any) -> None:
    content = read_step_file(path)
    change(content)
    write_step_file(path, content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["measurements"].pop(sorted(c["measurements"])[0]), "have no measurement"),
        (lambda c: c.pop("guards"), "no step that can be planned"),
        (lambda c: c["graph"]["forward"][0].__setitem__(1, ["aten::no_such_operator", "default"]), "no step"),
        (lambda c: c["graph"]["forward"][0].__setitem__(1, ["os:system"]), "none of monet's modules"),
        (lambda c: c["offering"].update(storage=["tape"]), "storage"),
        (lambda c: c["measurements"].update({sorted(c["measurements"])[0]: "{}"}), "no step that can be planned"),
    ],
)
def test_content_that_is_none(path: Path, change: Any, message: str) -> None:
    changed(path, change)
    with pytest.raises(ConfigError, match=message):
        read_step(path)


def test_files_that_are_none(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    for broken, message in (
        (text[: len(text) // 2], "cannot be read"),
        (text.replace('"name":"', '"name":"x', 1), "checksum"),
        (text.replace('"version": 1', '"version": 99', 1), "monet-step 99"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ("", "cannot be read"),
    ):
        path.write_text(broken)
        with pytest.raises(ConfigError, match=message):
            read_step(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_step(tmp_path / "missing.json")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(program, [*arguments, "--quiet"])


@pytest.mark.slow
def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("profile", "tiny.yaml", "--batch", "4")
    assert result.exit_code == 0 and "saved tiny.step.json" in result.output
    result = run(
        "plan", "--profile", "tiny.step.json", "--budget", "95%", "--time-limit", "5", "--json", "summary.json",
        "--reserve", "1MB",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = Plan.load(Path("tiny.plan.json"))
    summary = json.loads(Path("summary.json").read_text())
    assert plan.peak_bytes == summary["peak_bytes"] and plan.fixed["reserve"] == 10**6
    result = run(
        "plan", "--profile", "tiny.step.json", "--minimise", "memory", "--time-limit", "5", "--output", "less.json"
    )
    assert result.exit_code == 0 and Plan.load(Path("less.json")).peak_bytes <= plan.peak_bytes
    for arguments, message in (
        (("--budget", "1kB"), "fits in"),
        (("--budget", "95%", "--exact"), "--exact does not go with --profile"),
        (("--budget", "95%", "--variant", "gist"), "does not measure"),
        (("--budget", "95%", "--offload", "disk"), "give rates"),
    ):
        result = run("plan", "--profile", "tiny.step.json", *arguments)
        assert result.exit_code != 0 and message in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [("profile",), ("plan", "--budget", "50%")])
def test_cuda_is_refused_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command, "tiny.yaml", "--device", "cuda")
    assert result.exit_code == 2 and "this PyTorch" in result.output and "monet profile" in result.output
    assert list(tmp_path.iterdir()) == []


def test_plan_and_summary_are_two_files(path: Path, tmp_path: Path) -> None:
    both = str(tmp_path / "both.json")
    said = CliRunner().invoke(
        program, ["plan", "--profile", str(path), "--budget", "90%", "-o", both, "--json", both, "--quiet"]
    )
    assert said.exit_code == 2 and "is the plan file, too" in said.output
    assert not Path(both).exists()
