"""``monet trace``: every step of a plan timed in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import monet
from monet.base.files.cache import cache_folder
from monet.cli.main import program
from monet.executor.step_times import StepTimes
from monet.models.examples import tiny_resnet
from monet.ops.measuring.busy_machine import OtherPrograms
from monet.plans.plan import Plan


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was measured beside other tests is measured again later, and is another figure then: nothing is here, and
    nothing comes from a test before."""
    folder = tmp_path_factory.mktemp("trace-cache")
    (folder / "native").symlink_to(cache_folder() / "native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONET_CACHE", str(folder))
        patch.setattr(OtherPrograms, "took_cores", lambda _: False)
        yield


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "tiny.plan.json"
    done = CliRunner().invoke(
        program, ["plan", "tiny.yaml", "--budget", "85%", "--time-limit", "5", "--quiet", "--output", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


def test_every_step_is_timed(planned: Path, tmp_path: Path) -> None:
    written = tmp_path / "trace.json"
    done = CliRunner().invoke(
        program, ["trace", "tiny.yaml", str(planned), "--runs", "2", "--json", str(written), "--quiet"]
    )
    assert done.exit_code == 0, done.output
    plan, found = Plan.load(planned), json.loads(written.read_text())
    assert [(s["step"], s["kind"], s["node"]) for s in found["steps"]] == [
        (n, step.kind, step.node) for n, step in enumerate(plan.steps)
    ]
    assert all(step["measured_s"] > 0 and step["predicted_s"] > 0 for step in found["steps"])
    assert found["runs"] == 2 and found["predicted_s"] == plan.solver["objective_s"]
    assert sum(step["measured_s"] for step in found["steps"]) < found["whole_s"]
    # The plan's prediction is the sum of its steps', which are the same measurements.
    assert sum(step["predicted_s"] for step in found["steps"]) == pytest.approx(found["predicted_s"], rel=0.02)
    for word in ("forward", "backward", "all steps", "the whole step", "convolution"):
        assert word in done.output


def test_a_plan_of_another_model_is_refused(planned: Path) -> None:
    done = CliRunner().invoke(program, ["trace", "tiny.yaml", str(planned), "--batch", "2", "--quiet"])
    assert done.exit_code == 1 and "plan" in done.output and "Traceback" not in done.output


def test_timing_ends_with_its_context() -> None:
    torch.manual_seed(0)
    model, x = tiny_resnet(classes=10), torch.randn(2, 3, 32, 32)
    plan = monet.plan(model, x, budget="10GB", time_limit_s=5.0)
    module = monet.MonetModule(model, plan)
    runner = module._step.runner
    before = runner._enter, runner._leave
    with StepTimes(runner) as times:
        module(x).sum().backward()
    assert (runner._enter, runner._leave) == before
    assert [step for step, _ in times.steps()] == list(range(len(plan.steps)))
    module(x).sum().backward()
    assert len(list(times.steps())) == len(plan.steps)
