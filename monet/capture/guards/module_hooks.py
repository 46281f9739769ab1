"""Hooks of modules: those that only look at values are left out of a trace, the others are part of it.

Whether a hook only looks is read off its code: it returns None, assigns no attribute, and nothing in it could change a
tensor. In doubt it is traced, and then it must change nothing else in Python.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import types
from collections import OrderedDict
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from monet.capture.guards.code_reads import INSTALLED, CodeReads, is_installed
from monet.capture.guards.contents import content, is_equal, restore, same_content
from monet.errors import CaptureError

HOOK_ADVICE = "remove it while the model is planned, or let it return None where it only looks"

FORWARD = {"_forward_hooks": "hook", "_forward_pre_hooks": "forward pre-hook"}
BACKWARD = {"_backward_hooks": "backward hook", "_backward_pre_hooks": "backward pre-hook"}
HOOKS = {**FORWARD, **BACKWARD}

_CHANGING = {
    "setattr", "delattr", "vars", "exec", "eval", "__dict__", "__setattr__", "register_buffer", "register_parameter",
    "data", "setitem", "__setitem__",
    *(name for name in dir(operator) if name.startswith("__i") and f"__{name[3:]}" in dir(operator)),
    *(name for name in dir(operator) if name.startswith("i") and name[1:] in dir(operator)),
    *(name for name, of in vars(torch.nn.functional).items()
      if isinstance(of, types.FunctionType) and "inplace" in inspect.signature(of).parameters),
}  # fmt: skip
"""Names of functions and methods that change what they are given, or may."""
_CHANGING_KEYWORDS = {"out", "inplace"}
_RETURN_NONE = {"append", "extend", "add", "update", "insert", "clear", "print", "write_text", "info", "debug", "put"}
_NAMED = 3
"""How many hooks a message names."""


@dataclass(frozen=True, slots=True)
class PartHook:
    """A hook of the module ``label``. ``kind``: as ``HOOKS`` names it. ``looks``: whether it only looks."""

    label: str
    kind: str
    hook: Any
    looks: bool

    def __str__(self) -> str:
        return f"{hook_name(self.hook)}, a {self.kind} of {self.label}"


def hook_name(hook: Any) -> str:
    """A hook's name, for messages."""
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return f"{name} of {module}" if (module := getattr(hook, "__module__", None)) else name


def part_hooks(model: torch.nn.Module) -> list[PartHook]:
    """Those of the model, of its parts, and of every module."""
    found = []
    for name, module in model.named_modules():
        for members, kind in HOOKS.items():
            for hook in vars(module).get(members, {}).values():
                found.append(PartHook(name or "the model", kind, hook, only_looks(hook)))
    for members, kind in HOOKS.items():
        for hook in vars(torch.nn.modules.module)[f"_global{members}"].values():
            found.append(PartHook("every module", kind, hook, only_looks(hook)))
    return found


def said_of(hooks: list[PartHook]) -> str:
    """The hooks of a planned model's parts, for a message; "" where there are none."""
    named = "; ".join(str(hook) for hook in hooks[:_NAMED])
    more = f"; and {len(hooks) - _NAMED} more" if len(hooks) > _NAMED else ""
    return f"{named}{more}"


@contextmanager
def as_planned(model: torch.nn.Module) -> Iterator[None]:
    """A context in which the hooks that only look are not there, and the others leave nothing behind in Python. Raises
    ``CaptureError`` for hooks that no plan has: backward hooks, and hooks of every module, that may change values."""
    for found in part_hooks(model):
        if not found.looks and (found.kind in BACKWARD.values() or found.label == "every module"):
            raise CaptureError(
                f"{found} may change values, and a planned step has no moment at which it could be called: remove it, "
                "or let it return None and change nothing (hooks of parameters are called, and those of the planned "
                "model itself under monet.apply)"
            )
    held = [(vars(module), name or "the model") for name, module in model.named_modules()]
    own = {id(value) for members, _ in held for value in members.values()}
    everywhere = vars(torch.nn.modules.module)
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for members, label in held:
            if any(members.get(name) for name in BACKWARD):
                before.append((members, "_is_full_backward_hook", members["_is_full_backward_hook"]))
                members["_is_full_backward_hook"] = None
            for name, kind in HOOKS.items():
                if members.get(name):
                    before.append((members, name, members[name]))
                    members[name] = _left(members[name], kind, label, own)
        for name in HOOKS:
            if everywhere[f"_global{name}"]:
                before.append((everywhere, f"_global{name}", everywhere[f"_global{name}"]))
                everywhere[f"_global{name}"] = OrderedDict()
        yield
    finally:
        for members, name, hooks in reversed(before):
            members[name] = hooks


def _left(hooks: OrderedDict[int, Any], kind: str, label: str, own: set[int]) -> OrderedDict[int, Any]:
    return OrderedDict(
        (key, hook if isinstance(hook, _Traced) else _Traced(hook, kind, label, own))
        for key, hook in hooks.items()
        if isinstance(hook, _Traced) or not only_looks(hook)
    )


class HeldByCode:
    """What a function closes over, or is bound to; but for the objects whose ``id`` is in ``but``."""

    def __init__(self, function: Any, but: Set[int] = frozenset()) -> None:
        reads = reads_of(function)
        self._held = [(name, value) for name, value in reads.held if id(value) not in but]
        self._cells = [
            (name, cell)
            for function in reads.functions
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        ]

    @contextmanager
    def put_back(self, changed: list[str]) -> Iterator[None]:
        """A context after which all of it is as before; the names of what was not are in ``changed``."""
        held = [(name, value, content(value)) for name, value in self._held]
        empty = types.CellType()
        cells = [(name, cell, cell.cell_contents) for name, cell in self._cells if cell != empty]
        try:
            yield
        finally:
            for name, value, before in held:
                if not same_content(content(value), before):
                    changed.append(name)
                    restore(value, before)
            for name, cell, value in cells:
                if cell.cell_contents is not value and not is_equal(cell.cell_contents, value):
                    changed.append(name)
                cell.cell_contents = value


class _Traced:
    """A hook in a trace. Where it fails it is named, and where it changes what it holds in Python: what it computes may
    then depend on the call before."""

    def __init__(self, hook: Any, kind: str, label: str, own: set[int]) -> None:
        """``own``: what attributes of the model's modules hold, which tracing looks after itself."""
        self.hook, self._name = hook, f"{hook_name(hook)}, a {kind} of {label}"
        self._held = HeldByCode(hook, own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        changed: list[str] = []
        try:
            with self._held.put_back(changed):
                result = self.hook(*args, **kwargs)
        except CaptureError:
            raise
        except Exception as error:  # whatever a hook raises
            first = (str(error).splitlines() or [""])[0]
            raise CaptureError(
                f"{self._name}, cannot be traced: {type(error).__name__}: {first}; {HOOK_ADVICE}"
            ) from error
        if changed:
            raise CaptureError(
                f"{self._name}, may change values and changes {changed[0]} besides, which a planned step would not: "
                "divide it into a hook that only looks and one that only computes, or remove it"
            )
        return result


def own_hook(hook: Any) -> Any:
    """The user's own one, also while the model is traced."""
    return hook.hook if isinstance(hook, _Traced) else hook


def reads_of(hook: Any) -> CodeReads:
    """What a hook's code reads, and the code of the objects' methods that it names."""
    reads = CodeReads()
    if not reads.add(hook):
        reads.held.append((type(hook).__name__, hook))
        reads.add(vars(type(hook)).get("__call__"))
    size = -1
    while size != reads.size:
        size = reads.size
        reads.close()
        for _, owner in list(reads.held):
            if isinstance(owner, dict | list | set | tuple | torch.Tensor):
                continue
            for base in type(owner).__mro__:
                if not is_installed(base):
                    for name, value in list(vars(base).items()):
                        if reads.is_named(name):
                            reads.add(value)
            known = {id(value) for _, value in reads.held}
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(value, dict | list | set) and reads.is_named(name) and id(value) not in known:
                    reads.held.append((name, value))
    return reads


def only_looks(hook: Any) -> bool:
    """Whether a hook surely changes no value; False in doubt. Packages that are installed, but for PyTorch, are taken
    to change no tensor that they are given."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = hook
    if not isinstance(hook, types.FunctionType | types.MethodType):
        function = vars(type(hook)).get("__call__")
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return False
    if function.__code__.co_filename.startswith(INSTALLED) or not _returns_none(function.__code__):
        return False
    called = [of for of in reads_of(hook).functions if not of.__code__.co_filename.startswith(INSTALLED)]
    return not any(_may_change(of.__code__) or _calls_a_module(of) for of in {function, *called})


@lru_cache(maxsize=1024)
def _returns_none(code: types.CodeType) -> bool:
    instructions = list(dis.get_instructions(code))
    if code.co_flags & (0x20 | 0x80 | 0x200):  # a generator or a coroutine
        return False
    for number, instruction in enumerate(instructions):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return False
        if instruction.opname == "RETURN_VALUE":
            last = instructions[number - 1]
            if instruction.is_jump_target:  # ``return f(x) if x else None``
                return False
            if not (last.opname == "LOAD_CONST" and last.argval is None) and not _is_one_call(instructions, number):
                return False
    return True


def _is_one_call(instructions: list[dis.Instruction], end: int) -> bool:
    """Of a function that is one expression: whether this calls what returns None, as ``list.append``. What is called
    is loaded first."""
    if not instructions[end - 1].opname.startswith("CALL") or any("JUMP" in of.opname for of in instructions):
        return False
    for instruction in instructions[:end]:
        is_print = instruction.opname == "LOAD_GLOBAL" and instruction.argval == "print"
        is_method = instruction.opname == "LOAD_METHOD" or (
            instruction.opname == "LOAD_ATTR" and "NULL" in instruction.argrepr
        )
        if is_print or is_method:
            return instruction.argval in _RETURN_NONE
    return False


@lru_cache(maxsize=1024)
def _may_change(code: types.CodeType) -> bool:
    """Whether code may change a tensor or an attribute."""
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        name = str(instruction.argval)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_SLICE"):
            return True
        if instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME")) and (
            name in _CHANGING or (name.endswith("_") and not name.startswith("_"))
        ):
            return True
        if instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):
            follows = instructions[number + 1].opname if number + 1 < len(instructions) else ""
            if follows not in ("STORE_GLOBAL", "STORE_DEREF"):
                return True
        if instruction.opname == "STORE_SUBSCR" and not _is_of_a_container(instructions, number):
            return True
        if instruction.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") and _is_called(instructions, number):
            return True  # who knows what
    for constant in code.co_consts:
        if isinstance(constant, tuple) and not _CHANGING_KEYWORDS.isdisjoint(map(str, constant)):
            return True
    return any(isinstance(of, types.CodeType) and _may_change(of) for of in code.co_consts)


def _is_called(instructions: list[dis.Instruction], number: int) -> bool:
    """Whether what an instruction loads is called: Python puts a mark beside it, before (3.11, 3.12) or after it."""
    beside = instructions[max(0, number - 1) : number] + instructions[number + 1 : number + 2]
    return any(of.opname == "PUSH_NULL" for of in beside) or "NULL" in instructions[number].argrepr


def _calls_a_module(function: types.FunctionType) -> bool:
    """Whether it calls a module or an object of PyTorch's that it closes over or has as a global: what that does to
    its argument (``nn.ReLU(inplace=True)``) is not read."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    instructions = list(dis.get_instructions(function.__code__))
    for number, instruction in enumerate(instructions):
        if not _is_called(instructions, number):
            continue
        value = function.__globals__.get(str(instruction.argval))
        if instruction.opname == "LOAD_DEREF" and instruction.argval in cells:
            value = cells[str(instruction.argval)].cell_contents
        if isinstance(value, torch.nn.Module):
            return True
    return False


def _is_of_a_container(instructions: list[dis.Instruction], number: int) -> bool:
    """Whether ``seen[name] = …`` stores into what is no argument of the hook: a variable from around it, by a key that
    is a variable or a constant."""
    if number < 2 or instructions[number - 1].opname not in ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL"):
        return False
    return instructions[number - 2].opname in ("LOAD_GLOBAL", "LOAD_DEREF")
