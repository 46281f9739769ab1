"""Which names the code of a forward pass reads, from its bytecode: attributes, globals, what it closes over.

A method counts as called where its name is read, so the answer is more than what runs, never less, but for names that
are made at run time: where code calls ``getattr``, every name that begins with one of its texts counts.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

ENTRIES = ("forward", "__call__", "__iter__", "__getitem__", "__getattr__", "__getattribute__", "__len__",
           "__contains__", "__next__", "__enter__", "__exit__", "__bool__", "__eq__", "__get__")  # fmt: skip
"""Methods that Python or PyTorch calls without their name in the caller's code."""
_NOT_READ = {"numpy", "torch", "monet"} | set(sys.stdlib_module_names)
"""Packages whose functions are not looked into: PyTorch's layers are, see ``_is_read``."""
_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME", "IMPORT_FROM", "LOAD_SUPER_ATTR"}
_BY_TEXT = {"getattr", "hasattr", "attrgetter", "__dict__", "vars", "get_submodule", "get_parameter", "get_buffer"}
_CHILDREN = {"children", "named_children", "modules", "named_modules", "_modules"}


@dataclass(frozen=True, slots=True)
class Names:
    """Names that a piece of code reads; ``globals``: of these the global ones; ``begins``: with which names that are
    made at run time may begin; ``counted``: attributes that are added to or taken from (``self.count += 1``)."""

    read: frozenset[str]
    globals: frozenset[str]
    begins: frozenset[str]
    counted: frozenset[str]


@lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> Names:
    """Of a function's code and of what is defined inside. The target of ``self.count += 1`` is not read by that: its
    value goes nowhere else."""
    read: set[str] = set()
    globals_: set[str] = set()
    begins: set[str] = set()
    instructions = list(dis.get_instructions(code))
    added = _added_to(instructions)
    counted = {str(instructions[number].argval) for number in added}
    for number, instruction in enumerate(instructions):
        if instruction.opname in _READS and number not in added:
            read.add(str(instruction.argval))
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                globals_.add(str(instruction.argval))
    if not _BY_TEXT.isdisjoint(code.co_names):
        begins |= {text for text in _texts(code.co_consts) if text[:1].isidentifier()}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_of(constant)
            read |= inner.read
            globals_ |= inner.globals
            begins |= inner.begins
            counted |= inner.counted
    return Names(frozenset(read), frozenset(globals_), frozenset(begins), frozenset(counted))


def _added_to(instructions: list[dis.Instruction]) -> set[int]:
    """Which instructions load an attribute to add to it or to take from it, and to store the result there:
    ``COPY, LOAD_ATTR n, …, BINARY_OP +=, SWAP, STORE_ATTR n``."""
    found = set()
    for number, instruction in enumerate(instructions):
        before = instructions[number - 1] if number else instruction
        if instruction.opname != "LOAD_ATTR" or before.opname != "COPY":
            continue
        rest = instructions[number + 1 : number + 12]
        for counts, swap, store in zip(rest, rest[1:], rest[2:], strict=False):
            if counts.argrepr not in ("+=", "-=") or swap.opname != "SWAP" or store.opname != "STORE_ATTR":
                continue
            if store.argval == instruction.argval:
                found.add(number)
                break
    return found


@lru_cache(maxsize=4096)
def _counting(code: types.CodeType) -> frozenset[int]:
    instructions = list(dis.get_instructions(code))
    return frozenset(instructions[number].offset for number in _added_to(instructions))


def is_counting(code: types.CodeType, offset: int) -> bool:
    """Whether the instruction at ``offset`` loads an attribute just to add to it or to take from it."""
    return offset in _counting(code)


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from _texts(constant)


class CodeReads:
    """All that a set of functions and classes reads, those included that they name.

    ``names``: attributes and globals. ``counted``: as in ``Names``. ``lookups``: dictionaries of modules with the names
    that are read there. ``held``: values that functions close over or have as defaults, and globals that are containers
    or objects, with a name for each. ``classes``, ``functions``: all that were met.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lookups: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self.held: list[tuple[str, Any]] = []
        self.counted: set[str] = set()
        self.classes: dict[type, None] = {}
        self._begins: tuple[str, ...] = ()
        self._met: set[int] = set()
        self._held: set[int] = set()
        self.functions: list[types.FunctionType] = []
        self._queue: list[types.FunctionType] = []

    def is_read(self, name: str) -> bool:
        """Whether an attribute of this name may be read."""
        return name in self.names or (bool(self._begins) and name.startswith(self._begins))

    @property
    def reads_children(self) -> bool:
        """Whether code goes through the submodules of a module that names none of them."""
        return not _CHILDREN.isdisjoint(self.names)

    def add(self, thing: Any) -> bool:
        """Read a function, a method, or what calls one; False where it is nothing of that kind."""
        while isinstance(thing, functools.partial):
            self._hold("functools.partial", thing.args)
            self._hold("functools.partial", thing.keywords)
            thing = thing.func
        if isinstance(thing, types.MethodType):
            thing = thing.__func__
        if isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        if isinstance(thing, property):
            return any([self.add(part) for part in (thing.fget, thing.fset) if part is not None])
        inner = getattr(thing, "__wrapped__", None)
        if inner is not None and callable(inner):
            self.add(inner)
        if not isinstance(thing, types.FunctionType):
            return False
        if id(thing) not in self._met and _is_read(thing):
            self._met.add(id(thing))
            self.functions.append(thing)
            self._queue.append(thing)
        return True

    def add_class(self, of: type) -> None:
        """Read the methods of a class that are entered without their names, and those that others name."""
        for base in of.__mro__:
            if base in self.classes or base.__module__ == "builtins":
                continue
            self.classes[base] = None
            if base is not torch.nn.Module:
                for name, value in vars(base).items():
                    if name in ENTRIES or self.is_read(name):
                        self.add(value)

    def close(self) -> None:
        """Read all that follows from what was added."""
        while self._queue:
            self._read(self._queue.pop())

    def _read(self, function: types.FunctionType) -> None:
        names = names_of(function.__code__)
        for name in names.globals & function.__globals__.keys():
            self._look_up(function.__globals__, name, names)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._hold(name, cell.cell_contents)
            except ValueError:  # an empty cell
                continue
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._hold(function.__name__, value)
        self._learn(names)

    def _learn(self, names: Names) -> None:
        new = names.read - self.names
        begins = names.begins.difference(self._begins)
        self.names |= new
        self.counted |= names.counted
        if begins:
            self._begins += tuple(begins)
        if not new and not begins:
            return
        for of in list(self.classes):
            if of is torch.nn.Module:
                continue
            for name, value in list(vars(of).items()):
                if name in new or (begins and name.startswith(tuple(begins))):
                    self.add(value)

    def _look_up(self, where: dict[str, Any], name: str, names: Names) -> None:
        key = id(where), name
        if key in self.lookups:
            return
        self.lookups[key] = where, name
        value = where[name]
        if isinstance(value, types.ModuleType):
            for inner in names.read & vars(value).keys():
                self._look_up(vars(value), inner, names)
        else:
            self._hold(name, value)

    def _hold(self, name: str, value: Any) -> None:
        if isinstance(value, type):
            if _is_read(value):
                self.add_class(value)
        elif not self.add(value) and id(value) not in self._held:
            self._held.add(id(value))
            self.held.append((name, value))


def _is_read(thing: Callable[..., Any] | type) -> bool:
    """Whether code is looked into: a user's, another package's, and that of PyTorch's layers."""
    module = thing.__module__ or ""
    return module.partition(".")[0] not in _NOT_READ or module.startswith(("torch.nn.modules", "torch.nn.utils"))
