"""The structure of inputs and outputs, written and read: the same, or refused."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any, NamedTuple

import pytest
import torch.utils._pytree as pytree

from monet.capture.structure_text import UnwrittenStructure, structure_data, structure_of


class Pair(NamedTuple):
    first: Any
    second: Any = None


class Outer:
    class Inner(NamedTuple):
        only: Any


class Swapped(NamedTuple):
    second: Any
    first: Any


WRITTEN: dict[str, Any] = {
    "a leaf": 0,
    "nothing": (),
    "containers": ([1, (2, {"b": 3, "a": [4]})], OrderedDict(x=5), deque([6]), None),
    "a default dictionary": defaultdict(list, a=1),
    "keys that are numbers": {1: 2, False: 3},
    "a named tuple": Pair(1, [2, Pair(3, None)]),
    "one in a class": {"out": Outer.Inner((1, 2))},
}


@pytest.mark.parametrize("of", WRITTEN)
def test_what_is_read_is_what_was_written(of: str) -> None:
    leaves, spec = pytree.tree_flatten(WRITTEN[of])
    read = structure_of(json.loads(json.dumps(structure_data(spec))))
    assert read == spec and pytree.tree_unflatten(leaves, read) == WRITTEN[of]
    assert type(pytree.tree_unflatten(leaves, read)) is type(WRITTEN[of])


def _local() -> Any:
    made: Any = namedtuple("Pair", "first second")  # type: ignore[name-match]
    return made(1, 2)


@pytest.mark.parametrize("value", [_local(), {(1, 2): 3}, {"a": _local()}], ids=["local", "tuple as key", "inside"])
def test_what_would_be_read_otherwise_is_not_written(value: Any) -> None:
    """A class of the same name and fields is another class; JSON has no tuples."""
    with pytest.raises(UnwrittenStructure):
        structure_data(pytree.tree_structure(value))


def test_a_class_with_other_fields_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    data = structure_data(pytree.tree_structure(Pair(1, 2)))
    monkeypatch.setattr(sys.modules[__name__], "Pair", Swapped)
    with pytest.raises(UnwrittenStructure, match=r"Pair is no named tuple of first, second"):
        structure_of(data)


def test_reading_imports_nothing() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(UnwrittenStructure, match=r"antigravity\.Out is no named tuple of a"):
        structure_of(["named tuple", ["antigravity", "Out", ["a"]], None])
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "data", [7, [], ["node"], ["node", "no JSON"], ["named tuple", ["sys"]], ["node", "[1,{}]", 3]]
)
def test_what_is_no_structure_is_refused(data: Any) -> None:
    with pytest.raises(UnwrittenStructure):
        structure_of(data)
