"""Plan files: round trip, the same bytes every time, whole or not at all, and every malformed file is named as such."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_plan
from repository import ROOT

import monet
from monet.errors import InvalidPlan
from monet.plans import document as planfile
from monet.plans.format import ALIGNMENT, COPY_ALIGNMENT, aligned, whole_blocks
from monet.plans.plan import Plan

DOCUMENT = ROOT / "docs" / "plan-format.md"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.plan.json"
    random_plan(5).save(path)
    return path


def seal(document: Any) -> str:
    """The text of a plan file with this content and a matching checksum, in a layout of this test's own."""
    document = {**document, "sha256": ""}
    lines = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in document.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    return text.replace('\n"sha256":""', f'\n"sha256":"{planfile._checksum(text.encode())}"')


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    path = tmp_path_factory.mktemp("plans") / "a.plan.json"
    plan = random_plan(seed, steps=1 + seed % 20)
    plan.save(path)
    assert Plan.load(path) == plan
    first = path.read_bytes()
    Plan.load(path).save(path)
    assert path.read_bytes() == first


def test_the_checksum_is_what_the_shell_says(saved: Path) -> None:
    command = f"grep -v '^\"sha256\":' {saved} | sha256sum"
    shell = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout.split()[0]
    assert json.loads(saved.read_text())["sha256"] == shell


def test_the_file_is_sorted_compact_and_by_rows(saved: Path) -> None:
    text = saved.read_text()
    document = json.loads(text)
    assert list(document) == sorted(document)
    assert text.endswith("}\n")
    assert document["format"] == "monet-plan"
    assert document["version"] == 5
    assert document["peak_bytes"] == document["fixed_bytes"] + document["arena_bytes"]
    lines = text.splitlines()
    assert len([line for line in lines if line.startswith('{"begin":')]) == len(document["steps"] + document["buffers"])


def test_other_mappings_and_tuples_are_written(tmp_path: Path) -> None:
    plan = replace(
        random_plan(5), model=MappingProxyType({"training": (True, False)}), fixed=MappingProxyType({}), fixed_bytes=0
    )
    plan.save(tmp_path / "a.plan.json")
    assert Plan.load(tmp_path / "a.plan.json").model == {"training": [True, False]}


def test_equal_plans_give_equal_files(tmp_path: Path) -> None:
    plan = random_plan(5)
    step = plan.steps[0]
    shuffled = replace(
        plan,
        fixed=dict(reversed([*plan.fixed.items()])),
        environment=dict(reversed([*plan.environment.items()])),
        steps=(replace(step, writes=dict(reversed([*step.writes.items()]))), *plan.steps[1:]),
    )
    plan.save(tmp_path / "one")
    shuffled.save(tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": {"gap": float("nan")}},
        {"solver": {"gap": float("inf")}},
        {"model": {"module": object()}},
        {"environment": {"loop": None}},
        {"budget_bytes": 1.0},
        {"fixed": {"parameters": -1}},
    ],
)
def test_what_json_cannot_hold_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    if "environment" in changes:
        changes["environment"]["loop"] = changes["environment"]
    path = tmp_path / "a.plan.json"
    path.write_text("as before")
    with pytest.raises(InvalidPlan, match="not written"):
        replace(random_plan(5), **changes).save(path)
    assert path.read_text() == "as before"
    assert os.listdir(tmp_path) == ["a.plan.json"]


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.plan.json"
    path.write_text("as before")
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match="No space left"):
                random_plan(5).save(path)
        assert path.read_text() == "as before"
        assert os.listdir(tmp_path) == ["a.plan.json"]


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan) as refused:
        Plan.load(tmp_path / "none.plan.json")
    assert str(refused.value) == f"{tmp_path / 'none.plan.json'}: cannot be read: No such file or directory"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidPlan, match=r"none\.plan\.json: cannot be read"):
        Plan.load(tmp_path / "none.plan.json")


def test_every_truncation_is_rejected(saved: Path) -> None:
    data = saved.read_bytes()
    for length in [*range(0, len(data) - 1, 97), *range(len(data) - 40, len(data) - 2)]:
        saved.write_bytes(data[:length])
        with pytest.raises(InvalidPlan, match=r"a\.plan\.json: "):
            Plan.load(saved)


@given(st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_every_damaged_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, rng: random.Random) -> None:
    path = tmp_path_factory.mktemp("plans") / "a.plan.json"
    random_plan(5).save(path)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    with pytest.raises(InvalidPlan):
        Plan.load(path)


def test_damage_that_is_still_a_valid_plan_is_named(saved: Path) -> None:
    text = saved.read_text()
    saved.write_text(re.sub(r'"node":"n0"', '"node":"n9"', text))
    with pytest.raises(InvalidPlan, match="the checksum does not match"):
        Plan.load(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", "\ufeff{}", "{}x", "[" * 100_000, '{"format":"other"}'])
def test_other_files_are_not_plans(saved: Path, text: str) -> None:
    saved.write_text(text)
    with pytest.raises(InvalidPlan, match=r"not JSON|not a plan"):
        Plan.load(saved)


def test_bytes_that_are_no_text(saved: Path) -> None:
    saved.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InvalidPlan, match="not JSON"):
        Plan.load(saved)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 6, 5.0, "5", True, None])
def test_other_versions(saved: Path, version: object) -> None:
    saved.write_text(seal({**json.loads(saved.read_text()), "version": version}))
    with pytest.raises(InvalidPlan, match=r"version is .*reads version 5"):
        Plan.load(saved)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"gap": 0.0', '"gap": NaN', "NaN is not a number"),
        ('"gap": 0.0', '"gap": -Infinity', "-Infinity is not a number"),
        ('"gap": 0.0', '"gap": 1e999', "1e999 is not a number"),
        ('"gap": 0.0', '"gap": 0.0, "gap": 1.0', "the name 'gap' occurs twice"),
        ('"gap": 0.0', '"gap": ' + "9" * 5000, "not JSON"),
    ],
)
def test_what_python_reads_but_json_is_not(saved: Path, old: str, new: str, message: str) -> None:
    text = seal(json.loads(saved.read_text()))
    assert old in text
    saved.write_text(text.replace(old, new))
    with pytest.raises(InvalidPlan, match=message):
        Plan.load(saved)


def places(document: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Where each field of the format stands, with the last step and buffer for all, and how it is spelt in errors."""
    found: list[tuple[tuple[str | int, ...], str]] = [
        ((name,), name) for name in document if name not in ("format", "version", "sha256")
    ]
    for name in ("steps", "buffers"):
        last = len(document[name]) - 1
        found += [((name, last, cell), f"{name}[{last}].{cell}") for cell in document[name][last]]
    return found


def changed(document: dict[str, Any], place: tuple[str | int, ...], change: Callable[[Any, Any], None]) -> str:
    document = copy.deepcopy(document)
    holder: Any = document
    for part in place[:-1]:
        holder = holder[part]
    change(holder, place[-1])
    return seal(document)


def put(value: object) -> Callable[[Any, Any], None]:
    def change(holder: Any, name: Any) -> None:
        holder[name] = value

    return change


def test_every_field_is_required_and_typed(saved: Path) -> None:
    """Each field in turn: left out, then of each wrong type; the error names the file, the place and what."""
    document = json.loads(saved.read_text())
    right: dict[type, tuple[object, ...]] = {
        int: (-1, 1.0, True, None, "1", [], {}, 1 << 63),
        str: (1, None, [], {}),
        bool: (0, 1, None, "true", [], {}),
        dict: (1, None, "x", []),
        type(None): (-1, 1.0, True, "1", [], {}),
        list: (1, None, "x", {}),
    }
    for place, spelt in places(document):
        where = re.escape(spelt.rpartition(".")[0] or "the file")
        saved.write_text(changed(document, place, lambda holder, name: holder.pop(name)))
        with pytest.raises(InvalidPlan, match=rf"a\.plan\.json: {where}: '{place[-1]}' is missing"):
            Plan.load(saved)
        value: Any = document
        for part in place:
            value = value[part]
        for wrong in right[type(value)]:
            saved.write_text(changed(document, place, put(wrong)))
            with pytest.raises(InvalidPlan, match=rf"a\.plan\.json: {re.escape(spelt)}: must be"):
                Plan.load(saved)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("extra",), 1, r"the file: 'extra' is not a field"),
        (("steps", 1, "extra"), 1, r"steps\[1\]: 'extra' is not a field"),
        (("buffers", 2, "extra"), 1, r"buffers\[2\]: 'extra' is not a field"),
        (("steps", 1), [], r"steps\[1\]: must be an object"),
        (("steps", 1, "reads"), {"x": "3"}, r"steps\[1\]\.reads\['x'\]: must be an integer"),
        (("steps", 1, "writes"), {"x": None}, r"steps\[1\]\.writes\['x'\]: must be an integer"),
        (("steps", 1, "requests"), [None, 1.5], r"steps\[1\]\.requests\[1\]: must be an integer"),
        (("steps", 1, "request_bytes"), [None], r"steps\[1\]\.request_bytes\[0\]: must be an integer"),
        (("fixed", "inputs"), -5, r"fixed\['inputs'\]: must be at least 0"),
        (("peak_bytes",), 1, r"peak_bytes: is 1, but"),
        (("budget_bytes",), 1, r"needs .* more than the budget of 1$"),  # from the verifier
    ],
)
def test_malformed_places_are_named(saved: Path, place: tuple[str | int, ...], value: object, message: str) -> None:
    saved.write_text(changed(json.loads(saved.read_text()), place, put(value)))
    with pytest.raises(InvalidPlan, match=rf"a\.plan\.json: {message}"):
        Plan.load(saved)


def test_a_resealed_file_loads(saved: Path) -> None:
    """So what the tests above reject is not rejected for its formatting."""
    plan = Plan.load(saved)
    saved.write_text(seal(json.loads(saved.read_text())))
    assert Plan.load(saved) == plan


def example() -> str:
    found = re.search(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_example_is_a_valid_plan(tmp_path: Path) -> None:
    path = tmp_path / "example.plan.json"
    path.write_text(example())
    plan = Plan.load(path)
    plan.save(path)
    assert path.read_text() == example()


def test_every_field_is_documented() -> None:
    document, text = json.loads(example()), DOCUMENT.read_text()
    names = {*document, *document["steps"][0], *document["buffers"][0]}
    assert not [name for name in names if f"| `{name}` |" not in text]


def test_the_documented_outside_checker_works(tmp_path: Path) -> None:
    """The code in the document uses nothing of monet, accepts the example, and rejects an overlap."""
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    assert "monet" not in re.sub(r"monet-plan", "", found[1])
    path = tmp_path / "example.plan.json"

    def status(text: str) -> int:
        path.write_text(re.sub(r'"sha256":".*?"', f'"sha256":"{planfile._checksum(text.encode())}"', text))
        return subprocess.run([sys.executable, "-c", found[1], str(path)], check=False).returncode

    assert status(example()) == 0
    for old, new in (
        ('"offset":1024', '"offset":64'),
        ('"reads":{"relu":2}', '"reads":{"relu":0}'),
        ('"request_bytes":[1000,192]', '"request_bytes":[1000,193]'),
        ('"budget_bytes":4096', '"budget_bytes":2000'),
    ):
        assert old in example()
        assert status(example().replace(old, new)) == 1


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("solver", "threads", True),
        ("solver", "gap", "<script>"),
        ("solver", "objective_s", -1.0),
        ("solver", "eager_peak_bytes", True),
        ("solver", "status", 3),
        ("model", "training", [1]),
        ("model", "gradients", "thrown away"),
        ("model", "autocast", {"dtype": "bfloat16"}),
        ("model", "inputs", ["x"]),
        ("model", "inputs", [{"path": [0, "x"], "value": 1}]),
        ("model", "nests", [{"path": [0, 1], "kind": "set", "keys": []}]),
        ("model", "nests", [{"path": [0, 1], "kind": "list", "keys": [{}]}]),
        ("model", "nests", [{"path": [0], "kind": "list", "keys": []}]),
        ("model", "nests", [{"path": [0, 1], "kind": "list", "keys": [0, 0]}]),
        ("model", "nests", [{"path": [0, 1], "kind": "dict", "keys": ["a", "a"]}]),
        ("model", "nests", [{"path": [0] * 99, "kind": "list", "keys": []}]),
        ("model", "nests", [{"path": [0, 0, [{}]], "kind": "list", "keys": []}]),
        ("model", "nests", [{"path": [0] * (planfile.MOST_DEPTH + 1), "kind": "list", "keys": []}]),
        ("model", "dynamic", {"sizes": {"batch": [1, 2]}, "axes": {}, "bytes": {"relu": 3}}),
        ("model", "dynamic", {"sizes": {"batch": [0, 2]}, "axes": {}, "bytes": {}}),
        ("model", "dynamic", {"sizes": {"batch": [3, 2]}, "axes": {}, "bytes": {}}),
        ("environment", "threads", "2"),
        ("environment", "loop", None),
        ("environment", "second_memory", {"disk": 1}),
        ("environment", "second_memory", {"disk": True, "folder": 3}),
        ("environment", "second_memory", {"write_rate": -1.0}),
        ("environment", "second_memory", {"colour": "red"}),
    ],
)
def test_every_field_has_a_type(tmp_path: Path, part: str, name: str, value: Any) -> None:
    plan = random_plan(3)
    changes: dict[str, Any] = {part: {**getattr(plan, part), name: value}}
    with pytest.raises(InvalidPlan, match=rf"{part}.*{name}|'{name}' is not a field of format version"):
        replace(plan, **changes).save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def test_a_range_of_one_shape_and_inputs_as_deep_as_may_be_are_read(tmp_path: Path) -> None:
    dynamic = {"sizes": {"batch": [1, 1], "length": [1, 9]}, "axes": {}, "bytes": {}}
    nests = [{"path": [0] * planfile.MOST_DEPTH, "kind": "list", "keys": []}]
    plan = random_plan(3)
    replace(plan, model={**plan.model, "dynamic": dynamic, "nests": nests}).save(tmp_path / "plan.json")
    read = Plan.load(tmp_path / "plan.json").model
    assert read["dynamic"]["sizes"]["batch"] == [1, 1] and len(read["nests"][0]["path"]) == planfile.MOST_DEPTH


@pytest.mark.parametrize("block", [ALIGNMENT, COPY_ALIGNMENT])
def test_sizes_are_rounded_up_to_whole_blocks(block: int) -> None:
    rounded = {ALIGNMENT: aligned, COPY_ALIGNMENT: whole_blocks}[block]
    assert [rounded(size) for size in (0, 1, block - 1, block, block + 1)] == [0, block, block, block, 2 * block]


_WRITES = """
import sys
import time
from dataclasses import replace
from pathlib import Path
from monet.plans.plan import Plan
path = Path(sys.argv[1])
plan = Plan.load(path)
print("ready", flush=True)
while True:
    for peak in (0, 1):
        replace(plan, budget_bytes=plan.peak_bytes + peak).save(path)
"""


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_plan(tmp_path: Path) -> None:
    path, moments = tmp_path / "a.plan.json", random.Random(0)
    plan = random_plan(1)
    replace(plan, budget_bytes=plan.peak_bytes).save(path)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", _WRITES, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0.0, 0.1))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert Plan.load(path).budget_bytes - plan.peak_bytes in (0, 1)


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class _Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, pair: _Pair, named: dict[Any, Any], *, flag: bool | None = None, times: int = 2) -> torch.Tensor:
        out: torch.Tensor = self.layer(pair.first) + pair.second * times + named[3]["x"][0]
        return out


def test_plans_of_nested_inputs_are_written_and_read(tmp_path: Path) -> None:
    """Fields of named tuples have no key in a path, keys of dictionaries may be numbers, leaves may be no tensors."""
    x = torch.ones(2, 4)
    args = (_Pair(x, 2 * x), {3: {"x": [3 * x]}})
    plan = monet.plan(_Nested(), args, {"flag": None, "times": 3}, budget="100%", time_limit_s=2)
    plan.save(tmp_path / "nested.plan.json")
    assert Plan.load(tmp_path / "nested.plan.json") == plan
    assert [0, 0, None] in [leaf["path"] for leaf in plan.model["inputs"]]
