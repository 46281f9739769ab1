"""Sizes that vary, in a configuration and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import monet
from monet.cli.main import program
from monet.errors import ConfigError
from monet.models.config import load_config
from monet.models.examples import tiny_resnet

CONFIG = """
model: monet.models.examples:tiny_resnet
inputs:
  - shape: [batch<=6, 3, side <= 20, side<=20]
"""


def load(folder: Path, text: str = CONFIG) -> Path:
    path = folder / "net.yaml"
    path.write_text(text)
    return path


def test_a_configuration_names_the_sizes_that_vary(tmp_path: Path) -> None:
    config = load_config(load(tmp_path))
    assert isinstance(config.inputs, tuple)
    (spec,) = config.inputs
    assert (spec.shape, spec.names) == ((6, 3, 20, 20), ("batch", None, "side", "side"))
    assert config.dynamic == {"batch": (6, {0: [0]}), "side": (20, {0: [2, 3]})}
    smaller = config.with_batch(2).inputs
    assert isinstance(smaller, tuple)
    (other,) = smaller
    assert (other.shape, other.names) == ((2, 3, 20, 20), (None, None, "side", "side"))
    two = "model: a:b\ninputs:\n  x: {shape: [n<=4]}\n  y: {shape: [n<=5]}\n"
    with pytest.raises(ConfigError, match="n is at most 4 in one input and at most 5 in another"):
        _ = load_config(load(tmp_path, two)).dynamic


@pytest.mark.parametrize("size", ["batch<6", "batch<=0", "1<=6", "6.5"])
def test_a_size_that_is_none_is_told(size: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"net.yaml:4: inputs\[0\].shape\[0\]: must be a positive whole number, or a name"
    ):
        load_config(load(tmp_path, CONFIG.replace("batch<=6", size)))


def test_plan_and_show(tmp_path: Path, hasty_orders: None) -> None:
    path = tmp_path / "net.plan.json"
    arguments = ["plan", str(load(tmp_path)), "--budget", "100%", "--time-limit", "5", "--output", str(path)]
    planned = CliRunner().invoke(program, arguments)
    assert planned.exit_code == 0, planned.output
    shown = CliRunner().invoke(program, ["show", str(path)]).stdout
    assert "every one of batch 1 to 6, side 1 to 20" in shown
    torch.manual_seed(0)
    module = monet.MonetModule(tiny_resnet(), str(path))
    for batch, side in ((6, 20), (2, 13), (5, 16)):
        module(torch.randn(batch, 3, side, side)).sum().backward()
