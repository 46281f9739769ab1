"""The command line: usage, exit status, streams and files. The planner behind it is replaced where a test needs one."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from repository import ROOT

import monet
from monet.base.amounts import ByteCount
from monet.base.sizes import Ranges
from monet.cli.commands.plan import plan as plan_command
from monet.cli.commands.sweep import sweep as sweep_command
from monet.cli.main import plan_main, program
from monet.errors import InfeasibleBudget, ProfileError
from monet.lab.sweep.variants import GROUPS
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import Meter, on_stderr, silent
from monet.pipeline.planning import PlanResult
from monet.pipeline.preparation import Look, Preparing
from monet.pipeline.summary import OrderSummary, Summary
from monet.planner.schedules import VARIANTS
from monet.planner.search import Solving
from monet.planner.solvers.cvxpy import MIP_SOLVERS

SUMMARY: dict[str, Any] = {
    "status": "optimal",
    "budget_bytes": 6_000_000_000,
    "peak_bytes": 5_998_000_000,
    "arena_bytes": 5_500_000_000,
    "fixed_bytes": 498_000_000,
    "fixed": {"parameters": 102_000_000, "gradients": 102_000_000, "inputs": 294_000_000},
    "baseline_s": 10.0,
    "baseline_peak_bytes": 15_000_000_000,
    "eager_peak_bytes": 14_900_000_000,
    "objective_s": 10.4,
    "overhead": 0.04,
    "bound_s": 10.3,
    "gap": 0.0097,
    "bound_scope": "window 16",
    "order": {"method": "lpmf", "peak_bytes": 1 << 20, "bound_bytes": 1 << 20},
    "choices": {"convolution": {"onednn": 13, "onednn_channels_last": 40}, "relu": {"from_mask": 49}},
    "kept": 70,
    "recomputed": 104,
    "build_s": 1.5,
    "solve_s": 42.0,
}
MEASURED = {
    "eager": {"step_s": 10.1, "allocator_peak_bytes": 15_100_000_000, "resident_peak_bytes": 15_900_000_000},
    "planned": {"step_s": 10.5, "allocator_peak_bytes": 5_990_000_000, "resident_peak_bytes": None},
}


class FakePlan:
    environment = MappingProxyType({"threads": 2})

    def save(self, path: Path) -> None:
        path.write_text("a plan")


class FakeApi(types.ModuleType):
    """Stands for ``prepare`` and for the module ``planning``: records the call and answers as it is told to."""

    def __init__(self, answer: Callable[[], dict[str, Any]]) -> None:
        super().__init__("monet.pipeline.planning")
        self.answer = answer
        self.call: dict[str, Any] = {}

    def prepare(
        self,
        model: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        preparing: Preparing,
        offering: Offering,
        *,
        ranges: Ranges | None,
        progress: bool,
        look: Look | None,
    ) -> object:
        self.call = {"model": model, "args": args, "kwargs": kwargs, "ranges": ranges, "progress": progress}
        self.call |= asdict(preparing) | asdict(offering)
        return self

    def plan_prepared(
        self, prepared: object, budget: object, solving: Solving, *, variant: str, meter: Meter, reuse: bool
    ) -> object:
        assert prepared is self and reuse
        return self._answer(budget=budget, variant=variant, meter=meter, **asdict(solving))

    def plan_smallest(
        self, prepared: object, max_overhead: float | None, solving: Solving, *, variant: str, meter: Meter
    ) -> object:
        assert prepared is self
        return self._answer(max_overhead=max_overhead, variant=variant, meter=meter, **asdict(solving))

    def _answer(self, **options: Any) -> object:
        self.call |= options
        logging.getLogger("monet.pipeline.planning").info("planning")
        answer = self.answer()
        summary = Summary(**{**answer, "order": OrderSummary(**answer["order"])})
        return PlanResult(FakePlan(), summary, None, None)  # type: ignore[arg-type]


def measured_step(
    config: object, plan_path: Path | None, threads: int, *, in_place: bool = False, quiet: bool
) -> SimpleNamespace:
    """No operator is timed in place: the plan stays as it is."""
    return SimpleNamespace(values=MEASURED["eager" if plan_path is None else "planned"], seconds={})


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    """A planner that answers at once, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    fake = FakeApi(lambda: dict(SUMMARY))
    monkeypatch.setattr("monet.lab.experiments.configured.prepare", fake.prepare)
    monkeypatch.setitem(sys.modules, "monet.pipeline.planning", fake)
    measurement = types.ModuleType("monet.lab.experiments.measured_steps")
    monkeypatch.setattr(measurement, "expect_measuring", lambda config: None, raising=False)
    monkeypatch.setattr(measurement, "measured_step", measured_step, raising=False)
    monkeypatch.setitem(sys.modules, "monet.lab.experiments.measured_steps", measurement)
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["plan", *arguments])


@pytest.mark.parametrize("command", ["plan", "profile", "fit"])
def test_more_threads_than_a_machine_gives_are_refused(command: str) -> None:
    result = CliRunner().invoke(program, [command, "tiny.yaml", "--threads", "100000"])
    assert result.exit_code == 2 and re.search(r"'--threads': 100000 is more than \d+, the most", result.stderr)


NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
NO_MEMORY += "allocate 6000000000000 bytes. Error code 12\nframe #0: c10::ThrowEnforce\nframe #1"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("a name"), "monet: error: KeyError: 'a name' (monet did not foresee this: --verbose shows where"),
        (RuntimeError(), "monet: error: RuntimeError (monet did not foresee this"),
        (
            RuntimeError(NO_MEMORY),
            "monet: error: the machine's memory is used up: 6.000 TB were asked for at once. Try a smaller batch "
            "(--batch), or `monet fit --estimate`, which tells what fits and runs nothing",
        ),
        (
            ProfileError(f"batch_norm fails on float32[10000, 3]: {NO_MEMORY}"),
            "monet: error: the machine's memory is used up: 6.000 TB were asked for at once. Try a smaller batch",
        ),
    ],
)
def test_what_nobody_foresaw_is_one_line(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> None:
        raise error

    monkeypatch.setattr("monet.lab.experiments.configured.prepare_config", fail)
    result = run("tiny.yaml", "--budget", "80%", "--output", "/dev/null")
    assert result.exit_code == 1 and result.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in result.output and "frame #" not in result.output
    assert "Traceback" in run("tiny.yaml", "--budget", "80%", "--output", "/dev/null", "--verbose").output


def raising(error: BaseException) -> Callable[[], dict[str, Any]]:
    def answer() -> dict[str, Any]:
        raise error

    return answer


def test_a_plan_is_saved_and_summarised(api: FakeApi) -> None:
    result = run("--budget", "6GB", "tiny.yaml")
    assert result.exit_code == 0, result.output
    assert Path("tiny.plan.json").read_text() == "a plan"
    assert os.listdir() == ["tiny.plan.json"]
    assert "planning" in result.stderr
    for shown in (
        "5.998 GB",
        "6.000 GB",
        "15.000 GB",
        "294.000 MB",
        "predicted, 4.0% longer than eager's",
        "gap 1.0%",
        "window 16",
        "onednn_channels_last 40, onednn 13",
        "a loss outside the module allocates",
        "saved tiny.plan.json",
    ):
        assert shown in result.stdout
    assert "planning" not in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("budget", "amounts"),
    [
        ("6GiB", ["5.588 GiB", "5.586 GiB", "13.970 GiB", "280.380 MiB"]),
        ("6442450944", ["6,000,000,000 bytes", "5,998,000,000 bytes", "294,000,000 bytes"]),
        ("50%", ["6.000 GB", "5.998 GB", "294.000 MB"]),
    ],
)
def test_amounts_are_in_the_unit_of_the_budget(api: FakeApi, budget: str, amounts: list[str]) -> None:
    result = run("--budget", budget, "tiny.yaml", "--measure")
    assert result.exit_code == 0, result.output
    assert all(f" {amount} " in f"{result.stdout} ".replace("\n", " ") for amount in amounts)
    others = {" GB", " GiB", ",000 bytes"} - {unit for unit in (" GB", " GiB", ",000 bytes") if unit in amounts[0]}
    assert not [unit for unit in others if unit in result.stdout]


def test_options_reach_the_planner(api: FakeApi) -> None:
    result = run(
        *("tiny.yaml", "--budget", "6GB", "--reserve", "200MB", "--solver", "gurobi", "--window", "8"),
        *("--time-limit", "5", "--gap", "10%", "--threads", "1", "--cores", "2", "--no-cache", "--exact", "--quiet"),
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    (images,) = api.call.pop("args")
    assert images.shape == (8, 3, 32, 32)
    assert api.call.pop("model").training
    assert api.call == {
        "kwargs": {},
        "ranges": None,
        "budget": ByteCount(6_000_000_000),
        "reserve_bytes": 200_000_000,
        "solver": "GUROBI",
        "window": 8,
        "time_limit_s": 5.0,
        "gap": 0.1,
        "exact": True,
        "accumulate": False,
        "gradients": "freed",
        "bucket_bytes": 0,
        "costs": None,
        "cache": False,
        "progress": False,
        "seed": 0,
        "storage": frozenset(),
        "density": 0.75,
        "fused": False,
        "variant": "monet",
        "prove": False,
        "cores": 2,
        "meter": silent,
    }
    assert run("tiny.yaml", "--budget", "6GB", "--batch", "3").exit_code == 0
    assert api.call["args"][0].shape == (3, 3, 32, 32)
    assert run("tiny.yaml", "--minimise", "memory", "--max-overhead", "10%").exit_code == 0
    assert api.call["max_overhead"] == pytest.approx(0.1)
    assert "budget" not in api.call and api.call["prove"] is False


def test_defaults_reach_the_planner(api: FakeApi) -> None:
    assert run("tiny.yaml", "--budget", "50%").exit_code == 0
    options = {
        "solver": "HIGHS",
        "window": None,
        "time_limit_s": 120.0,
        "gap": 0.01,
        "exact": False,
        "cache": True,
        "accumulate": False,
        "gradients": "freed",
    }
    assert options.items() <= api.call.items()
    assert api.call["progress"] is True and api.call["meter"] is on_stderr
    assert api.call["reserve_bytes"] == 0


def test_json_holds_the_summary_and_the_measurement(api: FakeApi) -> None:
    assert run("tiny.yaml", "--budget", "6GB", "--json", "out.json").exit_code == 0
    assert json.loads(Path("out.json").read_text()) == SUMMARY
    result = run("tiny.yaml", "--budget", "6GB", "--json", "out.json", "--measure", "--output", "mine.json")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out.json").read_text()) == {**SUMMARY, "measured": MEASURED}
    assert sorted(os.listdir()) == ["mine.json", "out.json", "tiny.plan.json"]
    shown = ("allocator peak", "  in bytes")
    rows = [line.split("  ") for line in result.stdout.splitlines() if line.startswith(shown)]
    assert [[cell.strip() for cell in row if cell] for row in rows] == [
        ["allocator peak", "15.100 GB", "5.990 GB", "5.998 GB"],
        ["in bytes", "15100000000", "5990000000", "5998000000"],
    ]


def test_a_summary_without_a_bound_is_shown(api: FakeApi) -> None:
    api.answer = lambda: {**SUMMARY, "bound_s": None, "gap": None, "bound_scope": None, "choices": {}}
    result = run("tiny.yaml", "--budget", "6GB")
    assert result.exit_code == 0, result.output
    assert re.search(r"lower bound +- +none known", result.stdout)


def test_infeasible_is_status_1_with_one_message(api: FakeApi) -> None:
    api.answer = raising(InfeasibleBudget("no plan fits 1.000 MB.", 3_000_000, advice="that"))
    result = run("tiny.yaml", "--budget", "1MB")
    assert result.exit_code == 1
    assert result.stdout == ""
    named = "The smallest budget known to work is 3.000 MB (3,000,000 bytes). Try that."
    assert f"monet: error: no plan fits 1.000 MB. {named}\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert os.listdir() == []
    assert "Traceback" in run("tiny.yaml", "--budget", "1MB", "-v").stderr


def test_interrupt_is_status_130(api: FakeApi) -> None:
    api.answer = raising(KeyboardInterrupt())
    result = run("tiny.yaml", "--budget", "6GB")
    assert result.exit_code == 130
    assert result.stderr.endswith("monet: interrupted\n")
    assert os.listdir() == []


def test_an_interrupted_solve_saves_its_best_plan(api: FakeApi) -> None:
    api.answer = lambda: {**SUMMARY, "status": "interrupted"}
    result = run("tiny.yaml", "--budget", "6GB", "--measure")
    assert result.exit_code == 130
    assert Path("tiny.plan.json").exists()
    assert "interrupted" in result.stdout
    assert "measured" not in result.stdout


def test_a_failed_measurement_leaves_the_summary(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(sys.modules["monet.lab.experiments.measured_steps"], "measured_step", fail)
    result = run("tiny.yaml", "--budget", "6GB", "--measure", "--json", "out.json")
    assert result.exit_code == 1
    assert "Cannot allocate memory" in result.stderr
    assert json.loads(Path("out.json").read_text()) == SUMMARY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny.yaml"], "--budget"),
        (["--budget", "6GB"], "CONFIG"),
        (["tiny.yaml", "--budget", "6QB"], "6QB"),
        (["tiny.yaml", "--budget", "6GB", "--reserve", "10%"], "share"),
        (["tiny.yaml", "--budget", "6GB", "--window", "0"], "--window"),
        (["tiny.yaml", "--budget", "6GB", "--gap", "-1"], "--gap"),
        (["tiny.yaml", "--budget", "6GB", "--gap", "nan"], "nan is not a finite number"),
        (["tiny.yaml", "--budget", "6GB", "--gap", "ten%"], "'ten' is not a valid share"),
        (["tiny.yaml", "--budget", "6GB", "--time-limit", "inf"], "inf is not a finite number"),
        (["tiny.yaml", "--budget", "6GB", "--batch", "0"], "--batch"),
        (["tiny.yaml", "--budget", "6GB", "--batch", "2", "--max-batch"], "--batch does not go with --max-batch"),
        (["tiny.yaml", "--budget", "6GB", "--output", "."], "folder"),
        (["tiny.yaml", "--budget", "6GB", "--output", "none/x.json"], "none"),
        (["tiny.yaml", "--budget", "6GB", "--json", "none/x.json"], "none"),
        (["tiny.yaml", "--budget", "6GB", "--json", "tiny.plan.json"], "plan file"),
        (["tyni.yaml", "--budget", "6GB"], "did you mean tiny.yaml"),
        (["bad.yaml", "--budget", "6GB"], "bad.yaml:1"),
        (["gone.yaml", "--budget", "6GB"], "no module named 'nowhere'"),
    ],
)
def test_wrong_usage_is_status_2(api: FakeApi, arguments: list[str], message: str) -> None:
    Path("bad.yaml").write_text("model: [")
    Path("gone.yaml").write_text("model: nowhere:make\ninputs: [{shape: [1]}]\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir()) == ["bad.yaml", "gone.yaml"]


def test_what_is_read_is_not_written(api: FakeApi, tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    text = (ROOT / "configs/tiny.yaml").read_text()
    config.write_text(text)
    result = run(str(config), "--budget", "6GB", "--output", str(config))
    assert result.exit_code == 2 and "what is read: it would be overwritten" in result.stderr
    assert config.read_text() == text


WITHOUT_STREAMS = """
import os, sys
from monet.cli.main import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert os.open(sys.argv[2], os.O_RDONLY) > 2, "a file has the place of a stream"
sys.stderr.write("to nobody")
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_process_without_streams_does_its_work(closed: str, tmp_path: Path) -> None:
    buffers = tmp_path / "buffers.csv"
    buffers.write_text("id,lower,upper,size\n7,0,4,100\n3,2,6,50\n")
    command = [sys.executable, "-c", WITHOUT_STREAMS, "layout", str(buffers)]
    assert subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], check=False).returncode == 0


def test_logging_is_left_as_it_was(api: FakeApi) -> None:
    logger = logging.getLogger("monet")
    before = (logger.level, list(logger.handlers))
    run("tiny.yaml", "--budget", "6GB", "-v")
    assert (logger.level, list(logger.handlers)) == before


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["plan", "--budget", "6QB", "tiny.yaml"]])
def test_help_and_usage_errors_do_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import contextlib, sys; from monet.cli.main import program\n"
        f"with contextlib.suppress(SystemExit): program({arguments!r})\n"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules\n"
        f"if {arguments!r} != ['plan', '--help']:\n"  # which lists the planner's variants
        "    assert not {'scipy', 'numpy', 'highspy', 'cvxpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_monet_plan_is_the_plan_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["monet-plan", "--help"])
    with pytest.raises(SystemExit) as ended:
        plan_main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: monet-plan [OPTIONS] [CONFIG]")


def _said(*command: str) -> str:
    result = CliRunner().invoke(program, [*command, "--help"], terminal_width=1000)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_help_explains_every_name_that_it_takes(command: str) -> None:
    """Names of variants, baselines and solvers come from where they are decided, each with its line."""
    text = _said(command)
    for name, variant in VARIANTS.items():
        assert f" {name} {variant.description}" in text
    assert all(f" {name}" in text for name in MIP_SOLVERS)
    for word in (
        "monet-profile-1; there is no plan file",
        "eager PyTorch's own",
        "stage One operator",
        "0-1 program The",
        "bound What",
    ):
        assert word in text
    assert "--layout" not in text and "--order" not in text


@pytest.mark.parametrize("place", ["plan --help", "sweep --help", "command-line.md", "sweep.md", "monet.plan"])
def test_a_percentage_is_of_the_same_everywhere(place: str) -> None:
    if place.endswith(".md"):
        text = (ROOT / "docs" / place).read_text()
    else:
        text = str(monet.plan.__doc__) if place == "monet.plan" else CliRunner().invoke(program, place.split()).stdout
    assert "of eager's peak, or of what keeping everything needs in a plan, if that is more" in " ".join(text.split())


def test_sweeps_help_says_what_the_names_of_several_stand_for() -> None:
    text = _said("sweep")
    for name, several in GROUPS.items():
        assert f" {name} {', '.join(several)}" in text


def test_options_that_both_commands_have_are_explained_alike() -> None:
    plan, sweep = ({option.opts[0]: option for option in command.params} for command in (plan_command, sweep_command))
    for named in ("--profile", "--reserve", "--solver", "--window", "--gap", "--density", "--threads", "--exact"):
        assert vars(plan[named])["help"] == vars(sweep[named])["help"]
