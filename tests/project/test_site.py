"""The pages under docs/: their examples run, what they name is there, and their lines are short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from named_things import documents, is_file, is_named_thing
from pydantic_core import PydanticUndefined
from repository import ROOT

import monet
from monet.cli.main import program
from monet.models.config import Config, InputSpec, load_config, shipped_configs
from monet.models.torchvision_schemas import with_torchvision_schemas

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WIDTH = 120

# Old names are what a list of changes is about.
DOCUMENTS = [path for path in documents() if path.name != "CHANGELOG.md"]
FOLDERS = ("monet", "ops", "planner", "executor", "configs", "tests", "benchmarks", "docs", ".ci")
NOT_OURS = {"train.py", "train.yaml", "check.py", "utils.py"}
"""Files that documents speak of and that are not part of the repository: the user's, or one that must not be."""


def blocks(language: str, page: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no {language} block"
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- Examples


def run_all(page: str) -> dict[str, Any]:
    """Every Python block of a page, one after the other in one place; with less time to solve."""
    space: dict[str, Any] = {}
    for block in blocks("python", page):
        exec(
            re.sub(r'(budget=("[^"]+"|error\.smallest_bytes))(, time_limit_s=10)?', r"\1, time_limit_s=1", block), space
        )
    return space


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = run_all("tutorial.md")
    assert (tmp_path / "tiny.plan.json").is_file()
    assert space["plan"].peak_bytes <= space["plan"].budget_bytes
    assert space["refused_bytes"] > 1_000_000 and torch.isfinite(space["loss"])


@pytest.mark.slow
def test_training_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    space = with_torchvision_schemas(lambda: run_all("training-loops.md"))
    found = space["found"]
    assert (len(found.plans), found.planned_calls, found.eager_calls) == (2, 3, 0)
    assert monet.applied(space["model"]).planned_calls == 4
    assert monet.applied(space["towers"]).planned_calls == 2 and len(space["plans"]) == 2


SHARDED = """
import copy
from torch.distributed.device_mesh import init_device_mesh

layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 128), torch.nn.GELU()]
blocks = [torch.nn.Sequential(*copy.deepcopy(layers), torch.nn.Linear(128, 64)) for _ in range(2)]
model = torch.nn.Sequential(*blocks, torch.nn.Linear(64, 4))
shard(model, blocks, init_device_mesh("cpu", (2,)))
model(torch.randn(256, 64)).sum().backward()
print(f"rank {rank}: {[monet.applied(block).planned_calls for block in blocks]} planned blocks")
dist.barrier()  # a process that ends while gloo still talks to it aborts the other
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_several_processes(tmp_path: Path) -> None:
    """The page's script, and its function for sharded models after it, in two processes."""
    first, second = blocks("python", "distributed.md")
    assert first.endswith("dist.destroy_process_group()\n")
    script = first.removesuffix("dist.destroy_process_group()\n") + second + SHARDED
    (tmp_path / "train.py").write_text(re.sub(r'(budget="[^"]+")', r"\1, time_limit_s=1", script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for rank in (0, 1):
        assert re.search(rf"rank {rank}: 3 planned steps, [1-9]\d+ bytes of buckets counted", ended.stdout)
        assert f"rank {rank}: [1, 1] planned blocks" in ended.stdout


SCRIPTS = dict(
    zip(("Lightning", "accelerate", "PEFT", "FSDP2", "Two networks"), blocks("python", "scripts.md"), strict=True)
)
# A torchvision built for another PyTorch cannot be imported before its schemas are there.
RUN = """
import runpy
from monet.models.torchvision_schemas import with_torchvision_schemas
with_torchvision_schemas(lambda: runpy.run_path("train.py", run_name="__main__"))
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("Lightning", ["8 by a plan, 0 without one"], marks=pytest.mark.slow),
        pytest.param("accelerate", ["4 by a plan, 0 without one"], marks=pytest.mark.slow),
        pytest.param("PEFT", ["4 by a plan, 0 without one"], marks=pytest.mark.slow),
        pytest.param("FSDP2", ["rank 0: [3, 3, 3]", "rank 1: [3, 3, 3]"], marks=pytest.mark.slow),
        ("Two networks", ["3 by a plan, 0 without one", "9 by a plan, 0 without one"]),
    ],
)
def test_whole_scripts(name: str, said: list[str], tmp_path: Path) -> None:
    """As somebody runs them who has pasted them into a file."""
    (tmp_path / "train.py").write_text(re.sub(r'(budget="[^"]+")', r"\1, time_limit_s=1", SCRIPTS[name]))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, "run.py"]
    if name == "FSDP2":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert all(text in ended.stdout for text in said), ended.stdout


def test_the_training_step() -> None:
    """The planned steps, and on the same objects eager's lines, a step under autocast, and micro-batches."""
    assert torch.isfinite(run_all("training-step.md")["loss"])


def test_profile_guided_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, kinds and interrupted parts; the callback that it shows is run over a trainer in tests/guided."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    space = with_torchvision_schemas(lambda: run_all("profile-guided.md"))
    assert torch.isfinite(space["loss"]) and "<rect " in (tmp_path / "arena.html").read_text()
    assert space["arena"].report().kinds == 2


@pytest.mark.slow
def test_will_it_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run_all("fit.md")["answer"]
    assert answer.smallest is not None and answer.smallest.budget_bytes < answer.eager_peak_bytes


def test_coming_from_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("transformers")
    space = with_torchvision_schemas(lambda: run_all("coming-from.md"))
    assert monet.applied(space["model"]).planned_calls == 2 and "the plan takes its place" in caplog.text
    assert monet.applied(space["llama"]).planned_calls == monet.applied(space["compiled"]).planned_calls == 1


def test_when_something_goes_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    plan = run_all("when-something-goes-wrong.md")["plan"]
    assert "of eager's peak" in capsys.readouterr().out and plan.peak_bytes <= plan.budget_bytes


@pytest.mark.slow
def test_two_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = run_all("two-memories.md")
    assert space["plan"].second_bytes > 0 and space["model"][0].weight.grad is not None


def test_what_the_tutorial_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of its lines; the numbers are of another machine."""
    monkeypatch.chdir(tmp_path)
    command = next(line for line in commands("tutorial.md") if line.startswith("monet plan"))
    done = CliRunner().invoke(
        program, [*command.removesuffix(" --measure").split()[1:], "--time-limit", "1", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    shown = [re.split(r"\s{2,}", line.strip())[0] for line in blocks("text", "tutorial.md")[0].splitlines()]
    printed = [re.split(r"\s{2,}", line.strip())[0] for line in done.stdout.splitlines()]
    assert shown == printed[: len(shown)]


def test_the_graph_can_be_ordered(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(blocks("json", "order-and-layout.md")[0])
    done = CliRunner().invoke(program, ["order", str(tmp_path / "graph.json"), "--quiet"])
    assert done.exit_code == 0 and "no order needs less" in done.output


# -- Commands


def commands(page: str) -> list[str]:
    """The lines of a page's console blocks, without prompt and comment."""
    found = re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [line.split("#")[0].strip("$ \n") for block in found for line in block.splitlines()]


def monets_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for line in commands(page.name):
            if re.match(r"monet[ -]", line):
                yield page.name, line.replace("monet-", "monet ", 1)


@pytest.mark.parametrize(("page", "line"), list(monets_commands()))
def test_command_and_its_options_exist(page: str, line: str) -> None:
    _, name, *words = line.partition(".py ")[0].split()  # what follows a script is the script's
    assert name in program.commands, f"{page}: monet has no command {name}"
    options = {text for option in program.commands[name].params for text in option.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used <= options, f"{page}: {line}"


def test_every_command_is_described() -> None:
    page = (DOCS / "command-line.md").read_text()
    assert re.findall(r"^```\{command-help\} (\w+)", page, re.MULTILINE) == [
        name
        for name in (
            "plan",
            "profile",
            "fit",
            "sweep",
            "order",
            "layout",
            "show",
            "compare",
            "trace",
            "run",
            "operators",
        )
        if name in program.commands
    ]
    assert len(re.findall(r"^## monet ", page, re.MULTILINE)) == len(program.commands)
    assert all(isinstance(command, click.Command) and command.help for command in program.commands.values())


# -- Tables that repeat what code says


def first_cells(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    _, _, rest = (DOCS / page).read_text().partition(f"\n{heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert rows is not None, f"{page} has no table under {heading}"
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in rows.group().splitlines()[2:]]


@pytest.mark.parametrize(("heading", "model"), [("## The file", Config), ("## An input", InputSpec)])
def test_fields_of_a_configuration(heading: str, model: type[Config] | type[InputSpec]) -> None:
    rows = first_cells("configurations.md", heading)
    assert [row[0].strip("`") for row in rows] == list(model.model_fields)
    for row, field in zip(rows, model.model_fields.values(), strict=True):
        required = field.default is PydanticUndefined and field.default_factory is None
        assert (row[-1] == "required") == required, row
        if isinstance(field.default, bool | int):
            assert row[-1] == f"`{str(field.default).lower()}`", row


def test_every_shipped_configuration_is_listed() -> None:
    page = (DOCS / "configurations.md").read_text()
    listed = set(re.findall(r"`(\w+\.yaml)`", page.partition("## Shipped")[2]))
    assert listed == set(shipped_configs())


def test_yaml_examples_are_configurations(tmp_path: Path) -> None:
    for block in blocks("yaml", "configurations.md"):
        (tmp_path / "example.yaml").write_text(block)
        assert load_config(tmp_path / "example.yaml").inputs


def test_layers_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = next(contract for contract in contracts if contract.get("containers") == ["monet"])["layers"]
    rows = first_cells("architecture.md", "## Layers")
    assert [re.findall(r"`(\w+)`", row[0]) for row in rows] == [layer.split(" | ") for layer in checked]


# -- Names


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_names_of_code_exist(path: Path) -> None:
    """``monet.a.b`` anywhere, as a module, an attribute of one, or ``monet.module:callable``."""
    names = set(re.findall(r"(?<![\w/.-])monet(?:\.\w+)+(?::\w+)?", path.read_text()))
    stale = {name for name in names if not is_named_thing(name.replace(":", "."))}
    assert not stale, f"{name_of(path)} names what is not there: {sorted(stale)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_files_exist(path: Path) -> None:
    """``planner/x.py`` anywhere, and file names that stand alone between backticks."""
    text = path.read_text()
    folders = "|".join(map(re.escape, FOLDERS))
    named = {name.rstrip("./") for name in re.findall(rf"(?<![\w/.<-])(?:{folders})/[\w./-]*", text)}
    named |= set(re.findall(r"`([\w./-]+\.(?:py|cpp|h|md|yaml|toml|txt))`", text))
    stale = {name for name in named if not is_file(name) and name not in NOT_OURS}
    assert not stale, f"{name_of(path)} names files that are not there: {sorted(stale)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)\s]*)?\)", path.read_text())
    dead = [link for link in links if not (path.parent / link).exists()]
    assert not dead, f"{name_of(path)} links to what is not there: {dead}"


def test_stale_names_would_be_noticed() -> None:
    assert is_named_thing("monet.Plan.save") and is_named_thing("monet.planner.order.best_order")
    assert is_named_thing("monet.plans.format.PlanData.peak_bytes") and is_named_thing("monet.ops")
    assert not is_named_thing("monet.planfile") and not is_named_thing("monet.Plan.store")
    assert not is_named_thing("monet.planner.order.worst_order")
    assert is_file("planner/order/graph.py") and is_file("crew.cpp") and is_file("ops/families")
    assert not is_file("planner/order.py") and not is_file("planfile.py")


# -- Form


def long_lines(path: Path) -> Iterator[int]:
    """Numbers of lines that are too long; rows of tables and output in code blocks may be."""
    in_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        in_code ^= line.startswith("```")
        if len(line) > WIDTH and not in_code and not line.startswith("|"):
            yield number


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "operators.md"], ids=name_of)
def test_lines_are_short(path: Path) -> None:
    """One sentence a line, so that a long one shows itself."""
    assert not list(long_lines(path))


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"^[\w-]+$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert {page.stem for page in PAGES} - {"index"} <= listed
