"""Frozen dataclasses as JSON, and back: the value that was written, or an error.

What may be in them, by their type hints: ``int``, ``float``, ``str``, ``bool``, ``None``, tuples of one length or of
any, mappings from ``str``, other frozen dataclasses, and each of these or None. Reading makes no other object than
these, whatever the text is: text from disk runs no code, as a pickle would.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

# An int goes for a float, as in type hints, and stays one: the sum of no floats is 0.
_SCALARS: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
    NoneType: (NoneType,),
}


class Unreadable(ValueError):
    """A text is no JSON, or not that of the wanted type: a field is missing, unknown or of another type."""


def encode(value: object, kind: Any) -> str:
    """The JSON of a value of type ``kind``. Floats are written so that they are read exactly.

    Raises ``TypeError`` where the value, or a part of it, is not of the type that its field's hint says.
    """
    return json.dumps(_data(value, kind, ""))


def decode(text: str, kind: type[T]) -> T:
    """The value of type ``kind`` whose JSON is ``text``. Raises ``Unreadable``, with the place in the text."""
    try:
        found: T = _value(json.loads(text), kind, "")
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no JSON that can be read: {error}") from error
    return found


def description(kind: Any) -> str:
    """All fields of ``kind`` and of the types in it, with their hints: another text where values are written otherwise.
    For the key of what is kept, so that other versions' are not found."""
    found: dict[type, str] = {}

    def visit(part: Any) -> None:
        if is_dataclass(part) and isinstance(part, type) and part not in found:
            found[part] = ""  # it may have values of its own type
            hints = _hints(part)
            found[part] = f"{part.__name__}({', '.join(f'{name}: {_named(hint)}' for name, hint in hints.items())})"
            for hint in hints.values():
                visit(hint)
        for argument in get_args(part):
            visit(argument)

    visit(kind)
    return "; ".join([_named(kind), *found.values()])


def _named(hint: Any) -> str:
    """The hint with no type's module: a move of files changes nothing that is kept."""
    inside = get_args(hint)
    if not inside:
        return {Ellipsis: "...", NoneType: "None"}.get(hint) or str(getattr(hint, "__name__", hint))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_named, inside))
    return f"{_named(get_origin(hint))}[{', '.join(map(_named, inside))}]"


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Field → its type. Raises ``TypeError`` for a dataclass that can be changed, or that is not made of its fields."""
    if not kind.__dataclass_params__.frozen or not all(field.init for field in fields(kind)):  # type: ignore[attr-defined]
        raise TypeError(f"{kind.__name__} is no frozen dataclass made of all its fields")
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _data(value: Any, kind: Any, where: str) -> Any:
    """``value`` as what JSON has. ``where``: its place, for errors."""
    kind = _without_none(kind, value)
    if kind in _SCALARS:
        return _scalar(value, kind, where, TypeError)
    if is_dataclass(kind) and isinstance(kind, type):
        _expect(type(value) is kind, value, kind, where, TypeError)
        return {name: _data(getattr(value, name), hint, f"{where}.{name}") for name, hint in _hints(kind).items()}
    if get_origin(kind) is tuple:
        _expect(type(value) is tuple, value, kind, where, TypeError)
        kinds = _item_kinds(kind, value, where, TypeError)
        items = enumerate(zip(value, kinds, strict=True))
        return [_data(item, each, f"{where}[{i}]") for i, (item, each) in items]
    of = _content_kind(kind, where)
    keyed_by_text = isinstance(value, Mapping) and all(type(key) is str for key in value)
    _expect(keyed_by_text, value, kind, where, TypeError)
    return {key: _data(item, of, f"{where}[{key!r}]") for key, item in value.items()}


def _value(data: Any, kind: Any, where: str) -> Any:
    """The other way round."""
    kind = _without_none(kind, data)
    if kind in _SCALARS:
        return _scalar(data, kind, where, Unreadable)
    if is_dataclass(kind) and isinstance(kind, type):
        _expect(isinstance(data, dict), data, kind, where, Unreadable)
        hints = _hints(kind)
        if data.keys() != hints.keys():
            wrong = sorted(data.keys() ^ hints.keys())[0]
            raise Unreadable(f"{where or kind.__name__} has {'no' if wrong in hints else 'an unknown'} field {wrong}")
        return kind(**{name: _value(data[name], hint, f"{where}.{name}") for name, hint in hints.items()})
    if get_origin(kind) is tuple:
        _expect(isinstance(data, list), data, kind, where, Unreadable)
        kinds = _item_kinds(kind, data, where, Unreadable)
        items = enumerate(zip(data, kinds, strict=True))
        return tuple(_value(item, each, f"{where}[{i}]") for i, (item, each) in items)
    of = _content_kind(kind, where)
    _expect(isinstance(data, dict), data, kind, where, Unreadable)
    return {key: _value(item, of, f"{where}[{key!r}]") for key, item in data.items()}


def _without_none(kind: Any, value: Any) -> Any:
    """``X`` of a hint ``X | None``, or None's type where that is what the value is."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    others = [part for part in get_args(kind) if part is not NoneType]
    if len(others) != 1 or len(get_args(kind)) != 2:
        raise TypeError(f"a value of {kind} cannot be told from its JSON")
    return NoneType if value is None else others[0]


def _scalar(value: Any, kind: Any, where: str, error: type[Exception]) -> Any:
    _expect(type(value) in _SCALARS[kind], value, kind, where, error)
    return value


def _item_kinds(kind: Any, items: Any, where: str, error: type[Exception]) -> tuple[Any, ...]:
    """The type of each item of a tuple."""
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return (kinds[0],) * len(items)
    _expect(len(items) == len(kinds), items, kind, where, error)
    return kinds


def _content_kind(kind: Any, where: str) -> Any:
    """Of a mapping; all that can be left."""
    if get_origin(kind) is not Mapping or get_args(kind)[0] is not str:
        raise TypeError(f"{where or 'a value'} is declared as {kind}, which has no JSON here")
    return get_args(kind)[1]


def _expect(holds: bool, value: Any, kind: Any, where: str, error: type[Exception]) -> None:
    if not holds:
        raise error(f"{where or 'it'} is {_short(value)}, not of type {_named(kind)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
