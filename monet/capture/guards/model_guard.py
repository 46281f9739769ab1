"""What tracing a model may have read in Python, as it was then, and how it differs now.

Compared are, for each module: its class, its submodules, which parameters and buffers there are and which are one
memory, its hooks, its mode, and every attribute that code of the forward pass names; containers and objects among these
by what they hold; then methods and globals that this code names, and PyTorch's global switches. Values of tensors are
no part of it: the step reads them anew.
"""

from __future__ import annotations

import gc
import types
from collections import UserDict, UserList
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from monet.base.torch_switches import switches
from monet.capture.guards.code_reads import is_entry
from monet.capture.guards.contents import PLAIN, copy_of, is_equal, is_equal_copy
from monet.capture.guards.differences import (
    Difference,
    at,
    of_global,
    of_hook,
    of_items,
    of_member,
    of_value,
    quoted,
    short,
)
from monet.capture.guards.model_reads import (
    OF_EVERY_MODULE,
    OPAQUE,
    Found,
    is_kept_by_torch,
    is_met,
    model_reads,
    read_attributes,
    slots_of,
)
from monet.capture.guards.module_hooks import HOOKS, only_looks
from monet.capture.guards.tensor_ties import memory, same_objects, several_objects, ties
from monet.capture.guards.watch import ATTRIBUTE, DICT, LIST, LOOKUP, OTHER, SET, TYPE, Watch

Key = tuple[str, str]
"""A module's dotted name, "" for the model, and an attribute's name."""

_GLOBAL_HOOKS = {f"_global{name}": kind for name, kind in HOOKS.items()}
_MEMBERS = {"training", "_parameters", "_buffers", "_modules"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """``now``: what the watch would record. ``compare``: how that differs from what was recorded; None where nothing
    that matters does. ``within``: the attribute of a module through which the container was found."""

    kind: int
    container: Any
    compare: Callable[[tuple[Any, ...]], Difference | None]
    now: Callable[[], list[Any]]
    within: Key | None = None


class ModelGuard:
    """A model as it was when this was made. ``own_hooks``: whether the model's own hooks are part of what was
    traced. ``code_alone``: compare hooks and methods, and leave all else to Dynamo, which guards it."""

    def __init__(self, model: torch.nn.Module, *, own_hooks: bool = True, code_alone: bool = False) -> None:
        self._model, self._own_hooks = model, own_hooks
        self._written: frozenset[Key] = frozenset()
        self._within: Key | None = None
        self._names = {id(module): name for name, module in model.named_modules()}
        self._modules = list(model.modules())
        # Modules that something else than a module holds, and which memory their tensors have.
        self._foreign: set[int] = set()
        self._constants: list[tuple[str, torch.Tensor, int]] = []
        self._copies: list[tuple[str, Any, Any]] = []  # of what holds its items elsewhere: what they were
        self._reads = model_reads(model, own_hooks=own_hooks)
        self._entries: list[_Entry] = []
        self._watch = Watch()
        self._seen: dict[int, Any] = {}
        self._code_alone = code_alone
        for module in self._modules:
            self._add_own_hooks(module)
            if not code_alone:
                self._add_module(module)
        self._add_code()
        if not code_alone:
            self._add_globals()
        self._ties = [(of, of(model)) for of in (ties, same_objects)]
        self._apart = [] if code_alone else several_objects(model)
        self._switches = {} if code_alone else switches()
        for entry in self._entries:
            self._watch.record(len(self._watch), entry.kind, entry.container, entry.now())
        self._recorded = [tuple(entry.now()) for entry in self._entries]
        self._seen.clear()  # it kept alive what was named by its address

    def leave_out(self, written: Collection[Key]) -> None:
        """Compare these attributes no more, nor what they held: the forward pass assigns them anew."""
        self._written |= frozenset(written)
        for index, entry in enumerate(self._entries):
            if entry.within in self._written:  # no other entry is recorded anew: what has changed there stays changed
                self._entries[index] = nothing = _Entry(LIST, [], lambda _: None, list)
                self._recorded[index] = ()
                self._watch.record(index, nothing.kind, nothing.container, ())

    def difference(self) -> Difference | None:
        """What of the model is not as it was; None where nothing is."""
        index = self._watch.changed()
        while index >= 0:
            entry = self._entries[index]
            found = entry.compare(self._recorded[index])
            if found is not None:
                return Difference(f"{index} {found.place}", found.sentence)
            self._recorded[index] = tuple(entry.now())
            self._watch.record(index, entry.kind, entry.container, self._recorded[index])
            index = self._watch.changed(index + 1)
        for one, other in self._apart:
            if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
                return at("ties", self._of_ties())
        for place, tensor, was_memory in self._constants:
            if memory(tensor) != was_memory:
                return Difference(place, f"{place} has other memory than when this was planned")
        for place, value, was in self._copies:
            if not is_equal_copy(was, value):
                return Difference(place, f"{place} holds other things than when this was planned")
        now = {} if self._code_alone else switches()
        if now != self._switches:
            name = next(name for name in now if now[name] != self._switches[name])
            return Difference(name, f"{name} is {now[name]}, and was {self._switches[name]} when this was planned")
        return None

    # What is compared.

    def _label(self, module: torch.nn.Module) -> str:
        return self._names.get(id(module), "") or "the model"

    def _add(self, kind: int, container: Any, compare: Any, now: Callable[[], list[Any]]) -> None:
        self._entries.append(_Entry(kind, container, compare, now, self._within))

    def _add_dict(
        self,
        members: dict[Any, Any],
        told: Callable[[Any, Any, Any], str | None],
        matters: Callable[[Any, Any], bool],
        *,
        ordered: str = "",
    ) -> None:
        """``told``: a sentence on a key whose value was the second and is the third, ``OTHER`` where there is none.
        ``matters``: whether a key with this value is compared. ``ordered``: what is said to be in another order."""

        def now() -> list[Any]:
            # What cannot be called may be replaced by what can, and then be called.
            noted = ((key, value, matters(key, value) or matters(key, callable)) for key, value in members.items())
            return [part for key, value, matter in noted for part in (key, value if matter else OTHER)]

        def compare(recorded: tuple[Any, ...]) -> Difference | None:
            before = dict(zip(recorded[::2], recorded[1::2], strict=True))
            for key in (*before, *(key for key in members if key not in before)):
                was, value = before.get(key, OTHER), members.get(key, OTHER)
                if was is value or is_equal(was, value):
                    continue
                if matters(key, value) or (was is not OTHER and matters(key, was)):
                    sentence = told(key, was, value)
                    if sentence is not None:
                        return Difference(str(key), sentence)
            kept = [key for key in before if key in members]
            if ordered and kept != [key for key in members if key in before]:
                return Difference("order", f"{ordered} are in another order than when this was planned")
            return None

        self._add(DICT, members, compare, now)

    def _add_module(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):  # no plan has one
            return
        label, own = self._label(module), vars(module)
        of = type(module)
        self._add_type(label, module)
        name = self._names.get(id(module), "")
        is_root = module is self._model

        def matters(key: str, value: Any) -> bool:
            if key in OF_EVERY_MODULE:
                return key in _MEMBERS or (key in HOOKS and (self._own_hooks or not is_root))
            if is_kept_by_torch(module, key):
                return False
            return (key == "forward" or self._reads.is_met(key, value)) and (name, key) not in self._written

        self._add_dict(own, partial(self._of_attribute, label), matters)
        is_container = any("__iter__" in vars(base) or "__getitem__" in vars(base) for base in of.__mro__[:-1])
        any_child = is_container or self._reads.reads_children or self._reads.reads_tensors
        children = module._modules
        known = set(children)
        self._add_dict(
            children,
            partial(self._of_child, label),
            lambda key, _: key in known or any_child or self._reads.is_named(key),
            ordered=f"submodules of {label}" if any_child else "",
        )
        for members in (module._parameters, module._buffers):
            told = partial(self._of_tensor, name, foreign=id(module) in self._foreign)
            order = f"parameters of {label}" if is_container or self._reads.reads_tensors else ""
            self._add_dict(members, told, lambda key, _: True, ordered=order)
        for key, value in list(own.items()):
            if key not in OF_EVERY_MODULE and matters(key, value):
                self._within = name, key
                self._add_value(f"{label}.{key}" if name else f"the model's {key}", value)
        self._within = None

    def _add_own_hooks(self, module: torch.nn.Module) -> None:
        if self._own_hooks or module is not self._model:
            for hooks, kind in HOOKS.items():
                self._add_hooks(vars(module).get(hooks, {}), self._label(module), kind)

    def _add_hooks(self, hooks: dict[int, Any], label: str, kind: str) -> None:
        """Those that only look are in no plan: they may be gone."""
        left_out = {key for key, hook in hooks.items() if only_looks(hook)}
        self._add_dict(
            hooks,
            partial(of_hook, label, kind),
            lambda key, hook: key not in left_out and not only_looks(hook),
            ordered=f"the {kind}s of {label}",
        )
        for key, hook in hooks.items():
            if key not in left_out:
                self._add_value(f"a {kind} of {label}", hook)

    def _add_type(self, label: str, thing: Any) -> None:
        def compare(was: tuple[Any, ...]) -> Difference | None:
            now = type(thing).__name__
            return Difference("class", f"{label} is a {now} now, and was a {was[0].__name__} when this was planned")

        self._add(TYPE, thing, compare, lambda: [type(thing)])

    def _of_attribute(self, label: str, key: str, was: Any, value: Any) -> str | None:
        if key == "training":
            now, then = ("training", "evaluation") if value else ("evaluation", "training")
            return (
                f"{quoted(label)} is in {now} mode, and the plan was made with it in {then} mode; set the mode as it "
                "was when planning, or plan again"
            )
        if key == "forward":
            return f"forward of {label} was replaced after planning"
        whose = f"{label}.{key}" if label != "the model" else f"the model's {key}"
        return of_value(whose, was, value)

    def _of_child(self, label: str, key: str, was: Any, value: Any) -> str | None:
        whose = key if label == "the model" else f"{label}.{key}"
        what = "was replaced" if OTHER not in (was, value) else "was removed" if value is OTHER else "was added"
        return f"submodule {whose!r} {what} after planning; make a new MonetModule, or plan again"

    def _of_tensor(self, name: str, key: str, was: Any, value: Any, *, foreign: bool = False) -> str | None:
        """Another tensor of the same geometry is as good, if it is one memory with the same others. ``foreign``: of a
        module that is none of the model's, whose tensors are constants of the plan."""
        whose = f"{name}.{key}" if name else key
        if value is OTHER or was is OTHER:
            if was is OTHER and not self._reads.is_named(key) and not self._reads.reads_tensors:
                return None
            return f"{whose} was {'removed' if value is OTHER else 'added'} after planning"
        if was is None or value is None:
            return f"{whose} is {short(value)}, and was {short(was)} when this was planned"
        if foreign:
            return f"{whose} is another tensor than when this was planned, of a module that is no part of the model"
        return self._of_ties()

    def _of_ties(self) -> str | None:
        for of, then in self._ties:
            for place, first in of(self._model).items():
                was = then.get(place, first)
                if was == first:
                    continue
                if was != place:
                    return f"{place} and {was} were one tensor when this was planned, and are two now"
                return f"{place} and {first} were two tensors when this was planned, and are one now"
        return None

    def _add_value(self, label: str, value: Any, found: Found | None = None) -> None:
        """What a container or an object holds, where that can change while it stays the same one."""
        found = found or Found(value)
        if isinstance(value, (*PLAIN, *OPAQUE)) or id(value) in self._seen or found.is_too_deep:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            self._add_foreign(label, value)
        elif isinstance(value, types.MethodType):
            self._add_value(label, value.__self__)
        elif not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            self._add_items(label, value, found)
            self._add_object(label, value, found)

    def _add_items(self, label: str, value: Any, found: Found) -> None:
        """Of a container, also of a class that is derived from one."""
        if isinstance(value, UserDict | UserList):
            value = value.data
        if (copied := copy_of(value)) is not None:
            self._copies.append((label, value, copied))
        if isinstance(value, dict):
            self._add_dict(
                value,
                lambda key, was, now: of_value(f"{label}[{key!r}]", was, now),
                lambda key, _: True,
                ordered=f"the entries of {label}",
            )
        elif isinstance(value, list):
            self._add(LIST, value, partial(of_items, label, value), lambda: list(value))
        elif isinstance(value, set):
            self._add(SET, value, partial(of_items, label, value), lambda: list(value))
        if isinstance(value, dict):
            for key, item in list(value.items()):
                self._add_value(f"{label}[{key!r}]", item, found.inside(item))
        elif isinstance(value, list | tuple | frozenset):
            for number, item in enumerate(value):
                self._add_value(f"{label}[{number}]", item, found.inside(item))

    def _add_object(self, label: str, value: Any, found: Found) -> None:
        """The class and the attributes of an object, those in slots, too."""
        if type(value).__module__ == "builtins":
            return
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            told = partial(self._of_object, label)
            self._add_dict(held, told, lambda key, item: is_met(value, key, item, self._reads))
            self._add_type(label, value)
        for key in slots_of(type(value)):
            if self._reads.is_named(key):
                self._add_slot(f"{label}.{key}", value, key)
        for key, item in read_attributes(value, self._reads):
            self._add_value(f"{label}.{key}", item, found.inside(item))

    def _of_object(self, label: str, key: str, was: Any, value: Any) -> str | None:
        return of_value(f"{label}.{key}", was, value)

    def _add_slot(self, label: str, value: Any, key: str) -> None:
        """An attribute in a slot, or a variable that functions share."""

        def now() -> Any:
            try:
                return getattr(value, key, OTHER)
            except ValueError:  # an empty cell
                return OTHER

        def compare(was: tuple[Any, ...]) -> Difference | None:
            return None if is_equal(was[1], now()) else at(key, of_value(label, was[1], now()))

        self._add(ATTRIBUTE, value, compare, lambda: [key, now()])

    def _add_foreign(self, label: str, value: torch.nn.Module) -> None:
        """A module, and all of its, that is no submodule of the model."""
        added = [(name, module) for name, module in value.named_modules() if id(module) not in self._names]
        for name, module in added:
            self._names[id(module)] = f"{label}.{name}" if name else label
            self._foreign.add(id(module))
        for _, module in added:
            self._add_own_hooks(module)
            self._add_module(module)
            for members in (module._parameters, module._buffers):
                self._constants += [
                    (f"{self._label(module)}.{key}", tensor, memory(tensor))
                    for key, tensor in members.items()
                    if tensor is not None
                ]

    def _add_code(self) -> None:
        module = vars(torch.nn.modules.module)
        for name, kind in _GLOBAL_HOOKS.items():
            self._add_hooks(module[name], "every module", kind)
        for of in self._reads.classes:
            if of is torch.nn.Module or not of.__flags__ & _HEAP_TYPE:
                continue
            members = gc.get_referents(vars(of))[0]  # the dictionary itself, of which ``vars`` is a view
            functions = {key for key, value in members.items() if callable(value) or hasattr(value, "__get__")}

            def matters(key: str, _: Any, of: type = of, functions: set[str] = functions) -> bool:
                is_met = is_entry(of, key) or self._reads.is_named(key)
                return is_met and (not self._code_alone or key in functions)

            self._add_dict(members, partial(of_member, of.__qualname__), matters)
        for function in self._reads.functions:
            for part in ("__code__",) if self._code_alone else ("__code__", "__defaults__", "__kwdefaults__"):
                self._add_part(function, part)
            if not self._code_alone:
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
                    self._add_slot(name, cell, "cell_contents")

    def _add_part(self, function: types.FunctionType, part: str) -> None:
        """What is put into a function in the place of its own, as by IPython's autoreload."""
        name = f"{function.__qualname__}.{part}"
        self._add(
            ATTRIBUTE,
            function,
            lambda was: at(part, f"{name} was replaced after planning"),
            lambda: [part, getattr(function, part)],
        )

    def _add_globals(self) -> None:
        for where, name in list(self._reads.lookups.values()):
            self._add_lookup(where, name)
        for name, value in list(self._reads.held):
            self._add_value(name, value)

    def _add_lookup(self, where: dict[str, Any], name: str) -> None:
        label = f"{where.get('__name__', 'a module')}.{name}"

        def compare(was: tuple[Any, ...]) -> Difference | None:
            return at(name, of_global(label, was[1], where.get(name, OTHER)))

        self._add(LOOKUP, where, compare, lambda: [name, where.get(name, OTHER)])


_HEAP_TYPE = 1 << 9
"""Of a class that is written in Python (``Py_TPFLAGS_HEAPTYPE``): another one cannot be changed."""
