"""Which names one piece of code reads, from its bytecode: attributes, methods, globals, imports."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_READS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_BY_TEXT = {"getattr", "hasattr", "attrgetter", "__dict__", "vars", "get_submodule", "get_parameter", "get_buffer"}

_ALL = {"__dict__", "vars"}


@dataclass(frozen=True, slots=True)
class Names:
    """``attributes``: that are read of anything but a global; ``methods``: of these, that are called at once, so that
    only what can be called is meant. ``globals``: global names, each with the attributes that are read of it at once;
    ``around``: the same of variables of the functions around.
    ``imports``: modules that are imported inside. ``begins``: with which names that are made at run time may begin;
    ``by_value``: such names are held by attributes; ``all``: every attribute is gone through. ``counted``: attributes
    that are added to or taken from (``self.count += 1``)."""

    attributes: frozenset[str]
    methods: frozenset[str]
    globals: frozenset[tuple[str, str | None]]
    around: frozenset[tuple[str, str | None]]
    imports: frozenset[str]
    begins: frozenset[str]
    by_value: bool
    all: bool
    counted: frozenset[str]


@lru_cache(maxsize=8192)
def names_of(code: types.CodeType) -> Names:
    """Of a function's code and of what is defined inside. The target of ``self.count += 1`` is not read by that: its
    value goes nowhere else."""
    attributes: set[str] = set()
    methods: set[str] = set()
    globals_: set[tuple[str, str | None]] = set()
    around: set[tuple[str, str | None]] = set()
    imports: set[str] = set()
    begins: set[str] = set()
    instructions = list(dis.get_instructions(code))
    added = _added_to(instructions)
    counted = {str(instructions[number].argval) for number in added}
    by_value = not _BY_TEXT.isdisjoint(code.co_names)
    all_ = not _ALL.isdisjoint(code.co_names)
    for number, instruction in enumerate(instructions):
        name = str(instruction.argval)
        if instruction.opname in _GLOBALS or instruction.opname == "LOAD_DEREF":
            after = instructions[number + 1] if number + 1 < len(instructions) else instruction
            found = globals_ if instruction.opname in _GLOBALS else around
            found.add((name, str(after.argval) if after.opname in _READS else None))
        elif instruction.opname == "IMPORT_NAME":
            imports.add(name)
        elif instruction.opname in _READS and number not in added:
            before = instructions[number - 1].opname if number else ""
            if before not in _GLOBALS:
                (methods if is_method(instruction) else attributes).add(name)
    if by_value:
        attributes |= {text for text in _texts(code.co_consts) if text.isidentifier()}
        begins |= set(_beginnings(instructions))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_of(constant)
            attributes |= inner.attributes
            methods |= inner.methods
            globals_ |= inner.globals
            around |= inner.around
            imports |= inner.imports
            begins |= inner.begins
            counted |= inner.counted
            by_value = by_value or inner.by_value
            all_ = all_ or inner.all
    return Names(
        frozenset(attributes),
        frozenset(methods),
        frozenset(globals_),
        frozenset(around),
        frozenset(imports),
        frozenset(begins),
        by_value,
        all_,
        frozenset(counted),
    )


def is_method(instruction: dis.Instruction) -> bool:
    """Whether it loads an attribute to call it at once."""
    return instruction.opname == "LOAD_METHOD" or (instruction.opname == "LOAD_ATTR" and "NULL" in instruction.argrepr)


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


def _beginnings(instructions: list[dis.Instruction]) -> Iterator[str]:
    """Texts that others are put behind: ``f"layer_{number}"``, ``"layer_" + name``."""
    for number, instruction in enumerate(instructions):
        text = instruction.argval
        if instruction.opname != "LOAD_CONST" or not isinstance(text, str) or not text.strip("_").isidentifier():
            continue
        for after in instructions[number + 1 : number + 5]:
            if after.opname.startswith("FORMAT") or (after.opname == "BINARY_OP" and after.argrepr == "+"):
                yield text
                break


def _texts(constants: tuple[Any, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from _texts(constant)
