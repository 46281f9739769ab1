"""What a set of functions and classes reads in Python, those included that they name.

A method counts as called where its name is read, so the answer is more than what runs, never less, but for names that
are made at run time: where code calls ``getattr``, every name that begins with one of its texts counts, and every one
that an attribute holds.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import torch

from monet.capture.guards.code_names import Names, names_of
from monet.capture.guards.contents import PLAIN

ENTRIES = ("forward", "__call__", "__iter__", "__getitem__", "__getattr__", "__getattribute__", "__len__",
           "__contains__", "__next__", "__enter__", "__exit__", "__bool__", "__eq__", "__get__")  # fmt: skip
"""Methods that Python or PyTorch calls without their name in the caller's code."""
_OF_FUNCTIONS = ("backward", "vjp", "setup_context", "jvp", "vmap")
"""The same of a ``torch.autograd.Function``."""
_NOT_READ = {"numpy", "torch", "monet"} | set(sys.stdlib_module_names)
"""Packages whose functions are not looked into, but for those of ``_READ``."""
_READ = ("torch.nn.modules", "torch.nn.utils", "monet.models", "monet.step.training_step.whole_step")
"""PyTorch's layers and the like; a user's loss is called in monet's own module."""
_ADD = {"append", "extend", "add", "update"}
_CHILDREN = {"children", "named_children", "modules", "named_modules", "_modules"}
_TENSORS = {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "_parameters", "_buffers"}
Place = tuple[dict[str, Any], str]
"""A dictionary of globals and a name that is read there."""


def is_entry(of: type, name: str) -> bool:
    """Whether a class's method is called without its name in the caller's code."""
    return name in ENTRIES or (name in _OF_FUNCTIONS and issubclass(of, torch.autograd.Function))


class CodeReads:
    """All that functions and classes read that were added, once ``close`` has followed it.

    ``lookups``: where globals are read, by what. ``held``: values that functions close over or have as defaults, that
    methods are bound to, and globals and members of classes that are containers or objects, with a name for each.
    ``classes``, ``functions``: all that were met. ``counted``: as in ``Names``.
    """

    def __init__(self) -> None:
        self.lookups: dict[tuple[int, str], Place] = {}
        self.held: list[tuple[str, Any]] = []
        self.counted: set[str] = set()
        self._uses: dict[str, set[str | None]] = {}  # of variables: the attributes that are read of them
        self.classes: dict[type, None] = {}
        self.functions: list[types.FunctionType] = []
        self.by_value = False
        self._attributes: set[str] = set()
        self._methods: set[str] = set()
        self._begins: tuple[str, ...] = ()
        self._all = False  # a user's own code goes through all attributes
        self._met: set[int] = set()
        self._held: set[int] = set()
        self._queue: list[types.FunctionType] = []

    @property
    def size(self) -> int:
        """Grows with all that is learnt."""
        parts = self.lookups, self.held, self.classes, self.functions, self._attributes, self._methods, self._begins
        return sum(map(len, parts)) + self._all

    def is_read(self, name: str) -> bool:
        """Whether the value of an attribute of this name may be read."""
        return self._all or name in self._attributes or (bool(self._begins) and name.startswith(self._begins))

    def is_named(self, name: str) -> bool:
        """The same, or whether it may be called."""
        return name in self._methods or self.is_read(name)

    def is_met(self, name: str, value: Any) -> bool:
        """Whether this value of an attribute of that name may be read or called."""
        return self.is_read(name) or (name in self._methods and callable(value))

    def only_adds_to(self, variable: str) -> bool:
        """Whether code does nothing with what a global, or a variable around it, holds, but to add to it."""
        return variable in self._uses and self._uses[variable] <= _ADD

    @property
    def reads_children(self) -> bool:
        """Whether code goes through the submodules of a module that names none of them."""
        return any(map(self.is_named, _CHILDREN))

    @property
    def reads_tensors(self) -> bool:
        """Whether code goes through parameters and buffers that it does not name."""
        return any(map(self.is_named, _TENSORS))

    def add_name(self, name: str) -> None:
        """An attribute of this name is read."""
        self._learn({name}, set())

    def add(self, thing: Any) -> bool:
        """Read a function, a method, or what calls one; False where it is nothing of that kind."""
        while isinstance(thing, functools.partial):
            self._hold("functools.partial", thing.args)
            self._hold("functools.partial", thing.keywords)
            thing = thing.func
        if isinstance(thing, types.MethodType):
            self._hold(f"what {thing.__func__.__qualname__} is bound to", thing.__self__)
            thing = thing.__func__
        if isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        if isinstance(thing, property):
            return any([self.add(part) for part in (thing.fget, thing.fset) if part is not None])
        inner = inspect.getattr_static(thing, "__wrapped__", None) if callable(thing) else None
        if inner is not None and callable(inner):
            self.add(inner)
        if not isinstance(thing, types.FunctionType):
            return False
        is_generated = thing.__code__.co_filename == "<string>"  # a dataclass's __eq__, which names all fields
        if id(thing) not in self._met and _is_read(thing) and not is_generated:
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
                for name, value in list(vars(base).items()):
                    if is_entry(base, name) or self.is_named(name):
                        self._hold_member(base, name, value)

    def _hold_member(self, of: type, name: str, value: Any) -> None:
        """Of a package's objects, that are no modules, only what is read as an attribute: of a trainer, or a
        configuration, code calls no method whose name others do not have."""
        if not is_installed(of) or issubclass(of, torch.nn.Module) or is_entry(of, name) or isinstance(value, property):
            self._hold(f"{of.__qualname__}.{name}", value)

    def close(self) -> None:
        """Read all that follows from what was added."""
        while self._queue:
            self._read(self._queue.pop())

    def _read(self, function: types.FunctionType) -> None:
        names, around = names_of(function.__code__), function.__globals__
        # Objects that a package has as globals (tables of all its models) are compared by identity alone.
        objects = not function.__code__.co_filename.startswith(INSTALLED)
        attributes, methods = set(names.attributes), set(names.methods)
        for name, attribute in names.globals | names.around:  # into sets: in any order
            self._uses.setdefault(name, set()).add(attribute)
        for name, attribute in sorted(names.globals, key=str):  # of a set: another order in each process
            if name in around or name not in _BUILTINS:
                self._look_up(around, name, names, objects=objects)
            if attribute is not None and not isinstance(around.get(name), types.ModuleType):
                attributes.add(attribute)
        for name in sorted(names.imports):
            self._look_into(sys.modules.get(name), names, set(), objects=objects)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            try:
                self._hold(name, cell.cell_contents)
            except ValueError:  # an empty cell
                continue
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._hold(function.__name__, value)
        self.counted |= names.counted
        self.by_value = self.by_value or names.by_value
        self._all = self._all or (names.all and objects)
        self._begins += tuple(names.begins.difference(self._begins))
        self._learn(attributes, methods, names.begins)

    def _learn(self, attributes: set[str], methods: set[str], begins: frozenset[str] = frozenset()) -> None:
        new = (attributes - self._attributes) | (methods - self._methods)
        self._attributes |= attributes
        self._methods |= methods
        if not new and not begins:
            return
        beginning = tuple(begins)
        for of in list(self.classes):
            if of is torch.nn.Module:
                continue
            for name, value in list(vars(of).items()):
                if name in new or (beginning and name.startswith(beginning)):
                    self._hold_member(of, name, value)

    def _look_up(self, where: dict[str, Any], name: str, names: Names, *, objects: bool) -> None:
        """Code with these names reads this one. ``objects``: hold what it finds there, be it no code."""
        value = where.get(name)
        self._note(where, name, objects=objects)
        self._look_into(value, names, set(), objects=objects)

    def _look_into(self, module: Any, names: Names, seen: set[int], *, objects: bool) -> None:
        """What code that has these names may read of a module."""
        if not isinstance(module, types.ModuleType) or id(module) in seen:
            return
        seen.add(id(module))
        inside = vars(module)
        of_globals = {attribute for _, attribute in names.globals if attribute is not None}
        for name in sorted((names.attributes | names.methods | of_globals) & inside.keys()):
            self._note(inside, name, objects=objects)
            self._look_into(inside[name], names, seen, objects=objects)

    def _note(self, where: dict[str, Any], name: str, *, objects: bool) -> None:
        value = where.get(name)
        self.lookups.setdefault((id(where), name), (where, name))
        if objects or isinstance(value, type | types.FunctionType):
            self._hold(name, value)

    def _hold(self, name: str, value: Any) -> None:
        if value is sys.modules:  # what a forward pass imports is no change of the model
            return
        if isinstance(value, type):
            if _is_read(value):
                self.add_class(value)
        elif not isinstance(value, (*PLAIN, types.ModuleType)) and not self.add(value) and id(value) not in self._held:
            self._held.add(id(value))
            self.held.append((name, value))


_BUILTINS = frozenset(vars(builtins))
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Where the files of installed packages are."""


def is_installed(of: type) -> bool:
    """Whether a class is an installed package's, or Python's own."""
    path = vars(sys.modules.get(of.__module__, builtins)).get("__file__")
    return of.__module__ == "builtins" or (isinstance(path, str) and path.startswith(INSTALLED))


def _is_read(thing: Callable[..., Any] | type) -> bool:
    """Whether code is looked into: a user's, another package's, and that of PyTorch's layers."""
    module = thing.__module__ or ""
    return module.partition(".")[0] not in _NOT_READ or module.startswith(_READ)
