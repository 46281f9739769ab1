"""The README is short, its links and numbers are right, and its examples run as they stand."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner
from made_up_profile import write_profile
from repository import ROOT

from monet.cli.main import program
from monet.models.config import load_config
from monet.models.model_loading import build_model
from monet.plans.plan import Plan

README = (ROOT / "README.md").read_text()
LONGEST_LINE = 120
MOST_LINES = 110


def _blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def _page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target.partition("#")[0]).exists()] == []


def test_an_index_shows_the_readme_without_links_that_lead_nowhere() -> None:
    described = runpy.run_path(str(ROOT / "setup.py"))["described"]
    shown = described(README, None)
    assert re.findall(r"\]\((?!https?://)", shown) == []
    assert "measures the operators of a training step" in shown and "all loops" in shown and "![" not in shown
    text = "![a drawing](docs/a.svg) and [what](docs/b.md#there), [out](https://x.org)"
    assert described(text, "https://github.com/x/y") == (
        "![a drawing](https://github.com/x/y/raw/HEAD/docs/a.svg) and "
        "[what](https://github.com/x/y/blob/HEAD/docs/b.md#there), [out](https://x.org)"
    )


def test_the_table_is_the_record() -> None:
    """Bytes as they are, a resident set in GB, seconds with one digit."""
    result = json.loads((ROOT / "benchmarks" / "results" / "resnet50_6gb.json").read_text())["result"]
    eager, planned, promised = result["measured"]["eager"], result["measured"]["planned"], result["summary"]
    peaks = [eager["allocator_peak_bytes"], planned["allocator_peak_bytes"], promised["peak_bytes"]]
    resident = [step["resident_peak_bytes"] for step in (eager, planned)]
    seconds = [eager["step_s"], planned["step_s"], promised["objective_s"]]
    rows = [
        [f"{peak:,} bytes" for peak in peaks],
        [*(f"{count / 1e9:.2f} GB" for count in resident), ""],
        [f"{each:.1f}" for each in seconds],
    ]
    lines = README[README.index("| one step |") :].splitlines()[2:5]
    assert [[cell.strip() for cell in line.split("|")[2:5]] for line in lines] == rows


def test_the_caption_is_the_record() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "memory_along_step.json").read_text())["result"]
    assert f"{result['peak_bytes']:,} bytes" in README and f"{result['eager_peak_bytes']:,} bytes" in README


def test_python_examples() -> None:
    """One after the other, as a reader would type them."""
    space: dict[str, Any] = {}
    blocks = _blocks("python")
    for block in blocks:
        exec(block, space)
    assert len(blocks) == 2 and torch.isfinite(space["loss"])
    assert space["planned"].plan.peak_bytes <= space["planned"].plan.budget_bytes
    assert space["outputs"].shape == (8, 10)


def test_yaml_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(_blocks("yaml", _page("configurations"))[0])
    monkeypatch.chdir(tmp_path)
    config = load_config("train.yaml")
    assert config.model == "train:make_model" and isinstance(config.inputs, tuple)
    assert config.inputs[0].shape == (32, 128)


def test_yaml_example_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    block = _blocks("yaml", _page("configurations"))[1]
    (tmp_path / "gpt2.yaml").write_text(block.replace("n_layer: 6", "n_layer: 1, n_embd: 24"))
    config = load_config(tmp_path / "gpt2.yaml")
    assert (config.dtype, config.autocast) == ("float32", "bfloat16")
    assert next(build_model(config).parameters()).shape[1] == 24


def _commands(text: str) -> list[tuple[str, str]]:
    """Commands that plan, and what the page shows that they print."""
    parts = [part for block in _blocks("console", text) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)]
    commands = [part.partition("\n")[::2] for part in parts]
    planning = ("monet plan", "monet-plan", "monet sweep", "monet-sweep")
    return [(line.partition("#")[0].strip(), output) for line, output in commands if line.startswith(planning)]


def _labels(output: str) -> list[str]:
    """What each line is about: its text up to two spaces. ``…`` stands for lines that a page leaves out."""
    return [re.split(r"  +", line.strip())[0] for line in output.splitlines() if line.strip() not in ("", "…")]


COMMANDS = [*_commands(README), *_commands(_page("command-line"))]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 7 and len(_labels(COMMANDS[0][1])) >= 7


def _is_slow(command: str) -> bool:
    """Measured in further processes, beside another that is; or of a larger network."""
    return ("--measure" in command and "tiny" not in command) or "--max-batch" in command or "--batch 32" in command


@pytest.mark.parametrize(
    ("command", "shown"),
    [pytest.param(*each, marks=[pytest.mark.slow] if _is_slow(each[0]) else [], id=each[0]) for each in COMMANDS],
)
def test_command(command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the tiny model or a tiny profile, and less time; it prints the lines that are shown, in their order."""
    monkeypatch.chdir(tmp_path)
    write_profile(tmp_path / "profile.json")
    command = re.sub(r"\b(train|resnet50)\.yaml", "tiny.yaml", command)
    command = command.replace("resnet50.json", "profile.json").replace("40%:90%:10%", "90%").replace("5GiB", "100%")
    command = command.replace("6GB", "6MB").replace("50%", "85%").replace("monet-", "monet ")
    words = [*command.split()[1:], "--time-limit", "1", "--quiet"]
    if words[0] == "sweep":
        words += ["--variants", "monet,sqrt-n", "--jobs", "1"]
    done = CliRunner().invoke(program, words)
    assert done.exit_code == 0, done.output
    printed = iter(_labels(done.stdout))
    assert [label for label in _labels(shown) if label not in printed] == []


def test_the_command_of_the_picture(tmp_path: Path) -> None:
    """It draws two plans of the tiny model, and what it says of eager is what their summary says."""
    tiny = ["plan", "tiny.yaml", "--time-limit", "1", "--quiet"]
    eager, planned, drawn = (str(tmp_path / name) for name in ("eager.plan.json", "planned.plan.json", "step.svg"))
    for more in (
        ["--variant", "pytorch", "--budget", "100%", "--output", eager],
        ["--budget", "85%", "--output", planned],
    ):
        done = CliRunner().invoke(program, [*tiny, *more])
        assert done.exit_code == 0, done.output
    script = str(ROOT / "benchmarks" / "draw_step.py")
    said = subprocess.run(
        [sys.executable, script, eager, planned, "--output", drawn], capture_output=True, text=True, check=True
    )
    plan = Plan.load(planned)
    assert f"{plan.solver['eager_peak_bytes']} bytes eager, {plan.peak_bytes} bytes planned" in said.stdout
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")
    swapped = subprocess.run(
        [sys.executable, script, planned, planned, "--output", drawn], capture_output=True, text=True, check=False
    )
    assert swapped.returncode == 2 and "--variant pytorch" in swapped.stderr
