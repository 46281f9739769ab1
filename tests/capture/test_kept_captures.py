"""A step is traced once: what is kept equals what tracing finds, and whatever changes the step makes it traced anew."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import CASES, case_model
from slow_cases import slow_but
from torch import Tensor, nn
from usage_cases import tiny_gpt2

import monet
from monet.capture import Captured, capture, capture_once, kept_captures
from monet.capture.captured_text import NotStorable, captured_of, captured_text
from monet.capture.model_key import model_key


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_captures, "_in_memory", {})


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were traced."""
    models: list[nn.Module] = []

    def counted(model: nn.Module, *args: Any, **kwargs: Any) -> Captured:
        models.append(model)
        return capture(model, *args, **kwargs)

    monkeypatch.setattr(kept_captures, "capture", counted)
    return models


class Scaled(nn.Module):
    """Plain attributes of all kinds: data, a function, a constant."""

    def __init__(self, factor: float = 2.0, act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.factor, self.act = factor, act
        self.options = {"bias": [True, None], "name": "scaled"}
        self.shift = torch.arange(6.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(self.linear(x)) * self.factor + self.shift + torch.tensor([0.5, 1.5]).repeat(3))


def _same(a: Captured, b: Captured) -> bool:
    plain = all(
        getattr(a, name) == getattr(b, name) for name in ("graph", "in_spec", "out_spec", "literals", "output_literals")
    )
    return plain and all(torch.equal(t, b.constants[name]) for name, t in a.constants.items())


@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_is_what_was_traced(case: str) -> None:
    args, kwargs = CASES[case][1](0)
    captured = capture(case_model(case), args, kwargs)
    read = captured_of(captured_text(captured), captured.constants)
    assert _same(captured, read)
    assert captured.graph.fingerprint() == read.graph.fingerprint()
    assert captured_text(read) == captured_text(captured)


def test_the_second_time_nothing_is_traced(traced: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    first = capture_once(Scaled(), (torch.randn(2, 6),))
    model = Scaled()
    for _ in range(2):
        again = capture_once(model, (torch.randn(2, 6),))
        assert _same(first, again)
        kept = {id(t) for t in again.constants.values()}
        assert id(model.shift) in kept, "an attribute is the model's own, and may change"
        monkeypatch.setattr(kept_captures, "_in_memory", {})  # now from disk
    assert len(traced) == 1


def test_a_planned_module_traces_nothing(traced: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Scaled(), torch.randn(2, 6)
    plan = monet.plan(model, x, budget="10GB", time_limit_s=5.0)
    assert len(traced) == 1
    monkeypatch.setattr(kept_captures, "_in_memory", {})
    torch.manual_seed(0)
    planned = monet.MonetModule(model, plan)(x)
    assert len(traced) == 1
    torch.manual_seed(0)
    assert torch.equal(planned, model(x))


CHANGES: dict[str, Callable[[Scaled], Any]] = {
    "data": lambda m: setattr(m, "factor", 3.0),
    "data in a container": lambda m: m.options["bias"].append(1),  # type: ignore[attr-defined]
    "a submodule's setting": lambda m: setattr(m.drop, "p", 0.25),
    "a function": lambda m: setattr(m, "act", torch.sigmoid),
    "mode": lambda m: m.drop.eval(),
    "frozen": lambda m: m.linear.bias.requires_grad_(False),
    "a submodule": lambda m: setattr(m, "linear", nn.Linear(6, 6, bias=False)),
    "a constant's values": lambda m: m.shift.add_(1.0),
    "an own forward": lambda m: setattr(m, "forward", lambda x: m.linear(x)),
    "dtype": lambda m: m.double(),
}


@pytest.mark.parametrize("change", slow_but(list(CHANGES)[::3], CHANGES))
def test_a_change_is_traced_anew(change: str, traced: list[nn.Module]) -> None:
    model = Scaled()
    capture_once(model, (torch.randn(2, 6),))
    CHANGES[change](model)
    x = torch.randn(2, 6, dtype=model.linear.weight.dtype)
    again = capture_once(model, (x,))
    assert len(traced) == 2
    if change != "a constant's values":
        assert _same(again, capture(model, (x,)))


@pytest.mark.parametrize("inputs", [torch.randn(3, 6), torch.randn(6, 2).t(), torch.randn(2, 6, requires_grad=True)])
@pytest.mark.sampled(2)
def test_other_inputs_are_traced_anew(inputs: Tensor, traced: list[nn.Module]) -> None:
    capture_once(Scaled(), (torch.randn(2, 6),))
    capture_once(Scaled(), (inputs,))
    assert len(traced) == 2


def test_inputs_that_are_parts_are_those_of_their_geometry(traced: list[nn.Module]) -> None:
    capture_once(Scaled(), (torch.randn(2, 6),))
    capture_once(Scaled(), (torch.randn(8, 6)[2:4],))
    assert len(traced) == 1


def test_autocast_is_part_of_the_step(traced: list[nn.Module]) -> None:
    capture_once(Scaled(), (torch.randn(2, 6),))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        capture_once(Scaled(), (torch.randn(2, 6),))
    assert len(traced) == 2


def test_tied_weights_are_no_untied_ones() -> None:
    def model(*, tied: bool) -> nn.Module:
        two = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
        if tied:
            two[1].weight = two[0].weight
        return two

    x = (torch.randn(2, 4),)
    assert model_key(model(tied=True), x, {}, gradients_leave=True) != model_key(
        model(tied=False), x, {}, gradients_leave=True
    )


def test_versions_of_what_is_installed_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of that: the distribution of any other package is found by reading the files of all of them."""
    asked: set[str] = set()

    def key(version: str) -> str | None:
        def noted(package: str) -> str:
            asked.add(package)
            return version

        monkeypatch.setattr("monet.capture.model_key._version", noted)
        return model_key(Scaled(), (torch.randn(2, 6),), {}, gradients_leave=True)

    assert key("1") == key("1") != key("2")
    assert "torch" in asked and not asked & {"builtins", "typing", __name__.partition(".")[0]}


class Opaque:
    """What it holds cannot be seen."""

    __slots__ = ("width",)

    def __init__(self) -> None:
        self.width = 6


@pytest.mark.parametrize("thing", [Opaque(), torch.Generator(), torch.zeros(1 << 20), iter([1])])
def test_what_cannot_be_looked_into_is_traced_each_time(thing: object, traced: list[nn.Module]) -> None:
    model = nn.Linear(6, 6)
    model.thing = thing  # type: ignore[assignment]
    assert model_key(model, (torch.randn(2, 6),), {}, gradients_leave=True) is None
    for _ in range(2):
        capture_once(model, (torch.randn(2, 6),))
    assert len(traced) == 2


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"constants": {}, "captured": "{}"}'])
@pytest.mark.sampled(2)
def test_damage_is_traced_again(text: str, traced: list[nn.Module], tmp_path: Path) -> None:
    first = capture_once(Scaled(), (torch.randn(2, 6),))
    with sqlite3.connect(tmp_path / "cache" / "profile.sqlite3") as database:
        database.execute("UPDATE capture SET value = ?", (text,))
    kept_captures._in_memory.clear()
    assert _same(first, capture_once(Scaled(), (torch.randn(2, 6),)))
    assert len(traced) == 2


def test_text_names_operators_of_torch_and_functions_of_monet_only() -> None:
    captured = capture(nn.Linear(2, 2), (torch.randn(1, 2),))
    foreign = replace(captured.graph.forward[0], target=sum)
    graph = replace(captured.graph, forward=(foreign, *captured.graph.forward[1:]))
    with pytest.raises(NotStorable, match="neither an operator"):
        captured_text(replace(captured, graph=graph))
    evil = captured_text(captured).replace('["aten::', '["os:system","aten::', 1)
    with pytest.raises(NotStorable):
        captured_of(evil, {})


MODEL = """
from torch import nn
from helper import act

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return act(self.linear(x))
"""
HELPER = """
def act(x):
    return x.relu()
"""
RUN = """
import sys, torch, monet
from monet.capture import kept_captures, capture_once
real, count = kept_captures.capture, []
kept_captures.capture = lambda *a, **k: count.append(1) or real(*a, **k)
from model import Model
captured = capture_once(Model(), (torch.randn(2, 4),))
print(len(count), captured.graph.fingerprint())
"""


@pytest.mark.slow
def test_changed_code_is_traced_anew(tmp_path: Path) -> None:
    """Also that of a function in another of the user's files."""

    def run(model: str, helper: str) -> tuple[int, str]:
        (tmp_path / "model.py").write_text(textwrap.dedent(model))
        (tmp_path / "helper.py").write_text(textwrap.dedent(helper))
        command = [sys.executable, "-B", "-c", RUN]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        count, fingerprint = done.stdout.split()
        return int(count), fingerprint

    first = run(MODEL, HELPER)
    assert run(MODEL, HELPER) == (0, first[1])
    other = run(MODEL, HELPER.replace("relu", "sigmoid"))
    assert other[0] == 1 and other[1] != first[1]
    assert run(MODEL.replace("return act(", "return -act("), HELPER)[0] == 1


NAMED = """
from collections import namedtuple
from torch import nn

Out = namedtuple("Out", "logits aux")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        y = self.linear(x.aux)
        return Out(y.relu(), [y.sum()])
"""
RUN_NAMED = """
import sys, torch, monet
from monet.capture import kept_captures, capture_once, tracing
count = []
for name in ("direct_trace", "forward_graph"):
    real = getattr(tracing, name)
    setattr(tracing, name, lambda *a, real=real, **k: count.append(1) or real(*a, **k))
from model import Model, Out
import torch.utils._pytree as pytree
captured = capture_once(Model(), (Out(None, torch.randn(2, 4)),))
out = pytree.tree_unflatten([1, 2], captured.out_spec)
print(len(count), type(out) is Out, *out)
"""


@pytest.mark.slow
def test_named_tuples_are_found_again_by_other_processes(tmp_path: Path) -> None:
    """As GoogLeNet's output; with other fields, the class is another."""

    def run(model: str) -> str:
        (tmp_path / "model.py").write_text(model)
        done = subprocess.run(
            [sys.executable, "-B", "-c", RUN_NAMED], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    assert run(NAMED) == "1 True 1 [2]"
    assert run(NAMED) == "0 True 1 [2]"
    assert run(NAMED.replace("logits", "scores")) == "1 True 1 [2]"


KEYS = """
import torch
from usage_cases import tiny_gpt2
from monet.capture.model_key import model_key

class Applied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.of = {torch.relu, torch.nn.functional.gelu, torch.sin, torch.nn.functional.silu}

    def forward(self, x):
        return sum(function(x) for function in self.of)

ids = torch.zeros(1, 4, dtype=torch.int64)
for model, inputs in (
    (torch.nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)), (Applied(), torch.zeros(2)), (tiny_gpt2(), ids),
):
    print(model_key(model, (inputs,), {}, gradients_leave=True))
"""


@pytest.mark.slow
def test_the_key_is_the_same_in_every_process(tmp_path: Path) -> None:
    """A class of convolutions has a set of names in its code, a model may hold a set of functions, and GPT-2's code
    reads many globals: sets have another order in each process, and functions another address."""
    (tmp_path / "keys.py").write_text(KEYS)
    keys = {
        subprocess.run(
            [sys.executable, tmp_path / "keys.py"], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(keys) == 1 and "None" not in keys.pop()


def test_the_key_of_transformers_models_is_no_matter_of_the_process() -> None:
    """Their generation configuration holds a hash, which Python salts."""
    model, inputs = tiny_gpt2(), (torch.zeros(1, 4, dtype=torch.int64),)
    known = model_key(model, inputs, {}, gradients_leave=True)
    model.generation_config._original_object_hash += 1  # type: ignore[union-attr, operator]
    assert known is not None and model_key(model, inputs, {}, gradients_leave=True) == known
    model.generation_config.max_length = 21  # type: ignore[union-attr]
    assert model_key(model, inputs, {}, gradients_leave=True) != known
