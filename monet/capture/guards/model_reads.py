"""What the forward pass of a model reads in Python: of all its modules, their hooks, and the objects that they hold."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from monet.capture.guards.code_reads import CodeReads, is_installed
from monet.capture.guards.contents import PLAIN, place_in_set
from monet.capture.guards.module_hooks import FORWARD, only_looks, own_hook

OPAQUE = (torch.Tensor, types.ModuleType, type, torch.Generator)
"""What is not looked into as an object: it is compared by identity, or elsewhere."""
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_CONTAINERS = (list, tuple, dict, set, frozenset)
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_OF_TENSORS = frozenset(dir(torch.Tensor))
"""Of an object of a package these are not compared: where code reads such a name, it is of a tensor."""
MOST_DEPTH = 6
"""Of containers in containers: a deeper one is compared by identity alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value within others. ``depth``: how many; ``packaged``: whether one of them is an object of a package."""

    value: Any
    depth: int = 0
    packaged: bool = False

    @property
    def is_too_deep(self) -> bool:
        """Whether it is compared by identity alone: an object of a package within another one, as all that hangs on a
        trainer, and what is in many containers."""
        return self.depth > MOST_DEPTH or (self.packaged and _is_packaged(self.value))

    def inside(self, value: Any) -> Found:
        """A part of it."""
        return Found(value, self.depth + 1, self.packaged or _is_packaged(self.value))


def _is_packaged(value: Any) -> bool:
    return type(value).__module__ != "builtins" and is_installed(type(value))


def model_reads(model: torch.nn.Module, *, own_hooks: bool = True) -> CodeReads:
    """All that the modules' forward passes may read, those of modules included that are held by something else than a
    module. ``own_hooks``: the model's own hooks, too."""
    reads = CodeReads()
    modules = list(model.modules())
    for module in modules:
        _enter(reads, module, hooks=own_hooks or module is not model)
    known = set(map(id, modules))
    size = -1
    while size != reads.size:  # until nothing new is met
        size = reads.size
        reads.close()
        held = [value for _, value in reads.held]
        for value in _reachable([*(value for module in modules for value in _attributes(module, reads)), *held], reads):
            if isinstance(value, torch.nn.Module):
                for module in value.modules() if id(value) not in known else ():
                    if id(module) not in known:
                        known.add(id(module))
                        modules.append(module)
                        _enter(reads, module, hooks=True)
            elif not isinstance(value, OPAQUE) and not reads.add(value) and not isinstance(value, _CONTAINERS):
                reads.add_class(type(value))
    return reads


def _enter(reads: CodeReads, module: torch.nn.Module, *, hooks: bool) -> None:
    """Read what is called without its name where a module is."""
    reads.add_class(type(module))
    reads.add(vars(module).get("forward"))
    for kind in FORWARD if hooks else ():
        for hook in map(own_hook, vars(module).get(kind, {}).values()):
            if not only_looks(hook) and not reads.add(hook):
                reads.add_class(type(hook))


def _attributes(module: torch.nn.Module, reads: CodeReads) -> Iterator[Any]:
    for name, value in list(vars(module).items()):
        if name not in OF_EVERY_MODULE:
            if reads.by_value and isinstance(value, str) and value.isidentifier():
                reads.add_name(value)
            if reads.is_met(name, value):
                yield value


def attributes(model: torch.nn.Module, reads: CodeReads) -> Iterator[tuple[str, torch.nn.Module, str, Any]]:
    """Of all modules what code may read: the module's dotted name, the module, the attribute's name, its value."""
    for name, module in model.named_modules():
        for key, value in list(vars(module).items()):
            if key not in OF_EVERY_MODULE and reads.is_met(key, value):
                yield name, module, key, value


def label_of(module: str, key: str) -> str:
    """What an attribute of the module of that dotted name is called in a sentence."""
    return f"{module}.{key}" if module else f"the model's {key}"


def named_reachable(model: torch.nn.Module, reads: CodeReads, *, of_globals: bool = True) -> Iterator[tuple[str, Any]]:
    """What the forward pass may read of attributes, and of globals and variables around, and what is held in these;
    each once, with the name of the attribute or variable."""
    roots = [(label_of(name, key), value) for name, _, key, value in attributes(model, reads)]
    if of_globals:
        roots += [(name, where.get(name)) for where, name in reads.lookups.values()]
        roots += reads.held
    seen: set[int] = set()
    for label, root in roots:
        for value in _reachable([root], reads, seen):
            yield label, value


def held_tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that the forward pass may read and that are no parameter, buffer or attribute of a module of the model:
    in containers, objects, globals, and modules that one of these holds."""
    reads = model_reads(model)
    own = set(map(id, model.modules()))
    roots = [value for module in model.modules() for value in _attributes(module, reads)]
    roots += [where.get(name) for where, name in reads.lookups.values()]
    for value in _reachable([*roots, *(value for _, value in reads.held)], reads):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, torch.nn.Module) and id(value) not in own:
            yield from (*value.parameters(), *value.buffers())


def _reachable(roots: Iterable[Any], reads: CodeReads, seen: set[int] | None = None) -> Iterator[Any]:
    """These values and what may be read of them, each once and as far as it is compared; no plain ones. Modules and
    functions are not looked into. ``seen``: addresses of values to leave out, to which these are added."""
    queue, seen = deque(map(Found, roots)), set[int]() if seen is None else seen
    while queue:
        found = queue.popleft()
        value = found.value
        if isinstance(value, PLAIN) or id(value) in seen or found.is_too_deep:
            continue
        seen.add(id(value))
        yield value
        if not isinstance(value, (*OPAQUE, torch.nn.Module, *_FUNCTIONS)):
            queue.extend(map(found.inside, parts(value, reads)))


def parts(value: Any, reads: CodeReads) -> Iterator[Any]:
    """What a container holds, and of an object the attributes that may be read."""
    if isinstance(value, Mapping):
        yield from list(value.values())
    elif isinstance(value, list | tuple | deque):
        yield from list(value)
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=place_in_set)
    yield from [part for _, part in read_attributes(value, reads)]


def read_attributes(value: Any, reads: CodeReads) -> list[tuple[str, Any]]:
    """Attributes of an object that may be read, by name; those in slots, too."""
    held = getattr(value, "__dict__", None)
    found = list(held.items()) if isinstance(held, dict) else []
    for name in slots_of(type(value)):
        try:
            found.append((name, object.__getattribute__(value, name)))
        except AttributeError:  # not set
            continue
    return [(name, part) for name, part in found if is_met(value, name, part, reads)]


def is_met(value: Any, name: str, part: Any, reads: CodeReads) -> bool:
    """Whether this attribute of an object may be read."""
    return reads.is_met(name, part) and not (name in _OF_TENSORS and _is_packaged(value))


def slots_of(of: type) -> list[str]:
    """Names of a class's slots, of those of its bases that are written in Python."""
    found: list[str] = []
    for base in of.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def is_kept_by_torch(module: torch.nn.Module, key: str) -> bool:
    """Of the lists that a recurrent layer makes anew of its parameters, which are looked at themselves."""
    return isinstance(module, torch.nn.RNNBase) and key in ("_flat_weights", "_flat_weight_refs")
