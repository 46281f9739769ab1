"""Whether containers of Python hold what they held: compared by identity, thousands of entries in microseconds."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from monet.native.library import build, declare

DICT, LIST, TYPE, LOOKUP, SET, ATTRIBUTE = range(6)
"""Kinds of entries, as ``watch.cpp`` numbers them: a dictionary's keys and values, a list's items, an object's type, a
key of a dictionary, a set's members, an attribute of a function or in a slot."""


class _Other:
    """Stands for a value that is not compared, or, in a lookup, for a key that is not there."""


OTHER: Any = _Other()


@cache
def _library() -> ctypes.PyDLL | None:
    defines = ("MONET_DICT_VERSIONS=1",) if sys.version_info < (3, 12) else ()
    library = build(Path(__file__).with_suffix(".cpp"), with_torch=False, openmp=False, defines=defines)
    if library is not None:
        handle, number = ctypes.c_void_p, ctypes.c_int64
        items = ctypes.POINTER(ctypes.c_void_p)
        signatures: dict[str, tuple[object, list[object]]] = {
            "monet_watch_new": (handle, []),
            "monet_watch_delete": (None, [handle]),
            "monet_watch_set": (None, [handle, number, number, ctypes.py_object, items, number]),
            "monet_watch_changed": (number, [handle, number]),
        }
        declare(library, signatures)
    return library


class Watch:
    """Entries, each of a kind, a container and the items that it had when it was recorded."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Any, tuple[Any, ...]]] = []  # keeps alive what is compared by address
        self._changed: Callable[[int], int] = self._changed_in_python
        self._library, self._handle = _library(), None
        if self._library is not None:
            self._handle = ctypes.c_void_p(self._library.monet_watch_new())
            weakref.finalize(self, self._library.monet_watch_delete, self._handle)
            native, handle = self._library.monet_watch_changed, self._handle
            self._changed = lambda begin: int(native(handle, begin))

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, index: int, kind: int, container: Any, items: Sequence[Any]) -> None:
        """Entry ``index``, a new one where it is ``len(self)``. ``items``: of a dictionary keys and values in turn,
        where ``OTHER`` is a value that is not compared; of a list its items; of an object its type; of a lookup, or of
        an attribute, the key and its value, ``OTHER`` where the key is not there."""
        entry = kind, container, tuple(items)
        if index == len(self._entries):
            self._entries.append(entry)
        else:
            self._entries[index] = entry
        if self._library is not None:
            addresses = [None if item is OTHER else id(item) for item in items]
            array = (ctypes.c_void_p * len(addresses))(*addresses)
            self._library.monet_watch_set(self._handle, index, kind, container, array, len(addresses))

    def changed(self, begin: int = 0) -> int:
        """The first entry from ``begin`` on whose container holds something else now; -1 for none."""
        return self._changed(begin)

    def _changed_in_python(self, begin: int) -> int:
        for index in range(begin, len(self._entries)):
            if not _is_same(*self._entries[index]):
                return index
        return -1


def _is_same(kind: int, container: Any, items: tuple[Any, ...]) -> bool:
    if kind == TYPE:
        return type(container) is items[0]
    if kind == ATTRIBUTE:
        try:
            return getattr(container, items[0], OTHER) is items[1]
        except ValueError:  # an empty cell
            return items[1] is OTHER
    if kind == LOOKUP:
        return bool(container.get(items[0], OTHER) is items[1])
    if kind == SET:
        return bool(set(items) == container)
    if kind == LIST:
        return len(container) == len(items) and all(map(_is, container, items))
    now = [part for pair in container.items() for part in pair]
    return len(now) == len(items) and all(then is OTHER or a is then for a, then in zip(now, items, strict=True))


def _is(a: Any, b: Any) -> bool:
    return a is b
