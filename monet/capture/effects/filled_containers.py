"""Containers that a forward pass fills: whether what they held before is read, and whether it stays.

While a model is traced, one of these stands in the place of a module's list, dictionary or set. It may be added to.
What it held before may not be read; only once it was emptied is it one like others. Something that is no tensor lies in
it, so that functions written in C, which look past these methods, fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FILLED, EXTENDED, UPDATED = "filled", "extended", "updated"
"""What a forward pass does to a container: it gets new contents, more items, or entries of these keys."""
BEFORE: Any = object()
"""Stands for what was there before."""

_READS_OF_LISTS = ("__iter__", "__len__", "__getitem__", "__contains__", "__reversed__", "__eq__", "__add__", "__mul__",
                   "index", "count", "copy", "pop", "remove", "sort", "reverse", "insert", "__setitem__",
                   "__delitem__")  # fmt: skip
_READS_OF_DICTS = (
    "__iter__",
    "__len__",
    "__reversed__",
    "__eq__",
    "keys",
    "values",
    "items",
    "copy",
    "popitem",
    "__or__",
)
_READS_OF_KEYS = ("__getitem__", "__contains__", "__delitem__", "get", "pop", "setdefault")
_READS_OF_SETS = ("__iter__", "__len__", "__contains__", "__eq__", "copy", "pop", "remove", "discard", "__sub__",
                  "__or__", "__and__", "__xor__", "union", "difference", "intersection")  # fmt: skip


class _Filled:
    """``is_empty``: whether it was emptied; ``keys_set``: of a dictionary, those that were assigned; ``refuse``:
    returns what is raised where something is read that was there before."""

    is_empty: bool
    keys_set: set[Any]
    refuse: Callable[[], Exception]

    def clear(self) -> None:
        self.is_empty = True
        super().clear()  # type: ignore[misc]


def _refusing(name: str, of: type, *, by_key: bool = False) -> Any:
    method = getattr(of, name)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_empty and not (by_key and args and args[0] in self.keys_set):
            raise self.refuse()
        return method(self, *args, **kwargs)

    return read


class _List(_Filled, list):  # type: ignore[type-arg]
    pass


class _Set(_Filled, set):  # type: ignore[type-arg]
    pass


class _Dict(_Filled, dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        self.keys_set.add(key)
        super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value


for _of, _base, _names in ((_List, list, _READS_OF_LISTS), (_Set, set, _READS_OF_SETS), (_Dict, dict, _READS_OF_DICTS)):
    for _name in _names:
        setattr(_of, _name, _refusing(_name, _base))
for _name in _READS_OF_KEYS:
    setattr(_Dict, _name, _refusing(_name, dict, by_key=True))


def stand_in(container: Any, refuse: Callable[[], Exception]) -> Any:
    """One for a container of Python."""
    made: Any
    if isinstance(container, dict):
        made = _Dict()
        dict.__setitem__(made, BEFORE, BEFORE)
    else:
        made = _List([BEFORE]) if isinstance(container, list) else _Set({BEFORE})
    made.is_empty, made.keys_set, made.refuse = False, set(), refuse
    return made


def outcome(stand_in: Any) -> tuple[str, Any]:
    """What was done to a stand-in, and with what: a list of items, or a dictionary of entries."""
    stand_in.is_empty, was_emptied = True, stand_in.is_empty
    if isinstance(stand_in, dict):
        entries = {key: value for key, value in stand_in.items() if key is not BEFORE}
        return (FILLED if was_emptied else UPDATED), entries
    return (FILLED if was_emptied else EXTENDED), [item for item in stand_in if item is not BEFORE]


def difference(before: list[Any], now: Any) -> tuple[str, Any]:
    """The same from what a container held (as ``contents.content`` has it) and holds, where that is all we know."""
    if isinstance(now, dict):
        was = dict(zip(before[::2], before[1::2], strict=True))
        if was.keys() - now.keys():
            return FILLED, dict(now)
        return UPDATED, {key: value for key, value in now.items() if key not in was or was[key] is not value}
    if isinstance(now, list):
        stays = len(now) >= len(before) and all(a is b for a, b in zip(before, now, strict=False))
        return (EXTENDED, now[len(before) :]) if stays else (FILLED, list(now))
    return (EXTENDED, list(now - set(before))) if set(before) <= now else (FILLED, list(now))


def apply(how: str, container: Any, contents: Any) -> None:
    """Do to a container what ``outcome`` says."""
    if how == FILLED:
        container.clear()
    if isinstance(container, list):
        container.extend(contents)
    elif isinstance(container, dict):
        for key, value in contents.items():
            container[key] = value  # the update of a Counter would count
    else:
        container.update(contents)
