"""The structure of inputs and outputs as plain data, and back; named tuples too, which pytree itself writes only once
they are registered. To register one for the user would change how the user's own code sees it."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import Any

import torch.utils._pytree as pytree


class UnwrittenStructure(Exception):
    """A structure that has no form as plain data, or data that is no structure here."""


def structure_data(spec: pytree.TreeSpec) -> Any:
    """The structure as what JSON has: None for a leaf, else the kind of the node and its children.

    Raises ``UnwrittenStructure`` where ``structure_of`` would not give it back: a class that was made in a function,
    keys of a dictionary that JSON has no form for, a class that pytree was not told how to write.
    """
    data = _data(spec)
    if structure_of(data) != spec:
        raise UnwrittenStructure(f"{spec} would be read as {structure_of(data)}")
    return data


def structure_of(data: Any) -> pytree.TreeSpec:
    """The structure of ``structure_data``. Raises ``UnwrittenStructure`` where a class of it is not there, or another.

    A class is looked up among those that are loaded: reading imports and calls nothing.
    """
    try:
        if data is None:
            return pytree.tree_structure(0)
        kind, of, *children = data
        below = [structure_of(child) for child in children]
        if kind == "named tuple":
            return pytree.TreeSpec(namedtuple, _named_tuple(*of), below)
        node = pytree.treespec_loads(of)
        return pytree.TreeSpec(node.type, node.context, below)
    except (NotImplementedError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnwrittenStructure(f"{type(error).__name__}: {error}") from error


def _data(spec: pytree.TreeSpec) -> Any:
    if spec.is_leaf():
        return None
    children = [_data(child) for child in spec.children()]
    if spec.type is namedtuple:
        of = spec.context
        return ["named tuple", [of.__module__, of.__qualname__, list(of._fields)], *children]
    leaves = [pytree.tree_structure(0)] * len(children)
    try:
        return ["node", pytree.treespec_dumps(pytree.TreeSpec(spec.type, spec.context, leaves)), *children]
    except (NotImplementedError, TypeError, ValueError) as error:
        raise UnwrittenStructure(str(error)) from error


def _named_tuple(module: str, name: str, fields: list[str]) -> type:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_one = isinstance(found, type) and pytree.is_namedtuple_class(found)
    if not is_one or list(found._fields) != fields:
        raise UnwrittenStructure(f"{module}.{name} is no named tuple of {', '.join(fields)}")
    return found  # type: ignore[no-any-return]
