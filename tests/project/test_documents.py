"""The examples of the README run: the Python one on a small model, the YAML one through the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from made_up_profile import write_profile
from repository import ROOT

from monet.cli import program
from monet.configuration.config import load_config
from monet.configuration.model_loading import build_model

README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found, f"there is no {language} block"
    return found


def _small(code: str) -> str:
    for old, new in (
        ("import torch, torchvision, monet", "import torch, monet\nfrom monet.models.examples import tiny_resnet"),
        ("torchvision.models.resnet50()", "tiny_resnet(classes=1000)"),
        ("184", "4"),
        ("224, 224", "32, 32"),
    ):
        assert old in code, f"the example no longer has {old!r}: adapt this test"
        code = code.replace(old, new)
    return code


def test_python_example() -> None:
    space: dict[str, Any] = {}
    exec(_small(_blocks("python")[0]), space)
    assert all(p.grad is not None for p in space["model"].parameters())
    assert torch.isfinite(space["loss"])


def test_whole_step_example() -> None:
    space: dict[str, Any] = {}
    exec(_small(_blocks("python")[1]), space)
    assert space["outputs"].shape == (4, 1000) and torch.isfinite(space["loss"])


def test_yaml_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.yaml").write_text(_blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    config = load_config("train.yaml")
    assert config.model == "train:make_model" and isinstance(config.inputs, tuple)
    assert config.inputs[0].shape == (32, 128)


def test_yaml_example_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "gpt2.yaml").write_text(_blocks("yaml")[1].replace("n_layer: 6", "n_layer: 1, n_embd: 24"))
    config = load_config(tmp_path / "gpt2.yaml")
    assert (config.dtype, config.autocast) == ("float32", "bfloat16")
    assert next(build_model(config).parameters()).shape[1] == 24


def _commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    lines = [line.split("#")[0].strip("$ \n") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("monet")]


def test_there_are_commands() -> None:
    assert len(_commands()) >= 6


@pytest.mark.parametrize("command", _commands())
def test_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the tiny model or a tiny profile, and less time."""
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
