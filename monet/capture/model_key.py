"""What a capture depends on, as one hash: the model's code, its settings and geometry, and those of the call.

Equal keys must mean equal graphs, so whatever cannot be looked into makes no key: the step is then captured anew. What
is looked into: the source of every class and function that is met, of every loaded module outside of installed
packages (which covers what those call), the versions of the installed packages they come from, and all plain data that
modules and their configurations hold.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import sys
import sysconfig
import types
from collections import UserDict, UserList
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.base.code_version import code_version
from monet.base.torch_switches import tracing_switches
from monet.capture import autocast
from monet.capture.captured import device_type
from monet.capture.export_errors import where
from monet.capture.guards.code_reads import CodeReads
from monet.capture.guards.contents import PLAIN, copy_of, place_in_set
from monet.capture.guards.model_reads import Found, model_reads, parts
from monet.capture.structure_text import UnwrittenStructure, structure_data

FORMAT = 3
"""Of a key and of what is kept under it."""
MOST_CONSTANT_BYTES = 1 << 16
"""Of a tensor that is neither parameter nor buffer: a larger one makes no key."""

# Of every module, and no part of a step: what is called while saving and loading, and backward hooks of the module.
_BESIDE = {"_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
           "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl"}  # fmt: skip
# Of this process alone: the number by which transformers' generation configuration tells whether it was changed, and
# diffusers' list, in the order of a set, of the arguments that were left out.
_OF_THE_PROCESS = {"_original_object_hash", "_use_default_values"}
_INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class _Opaque(Exception):
    """Something that a graph may depend on and that cannot be looked into."""


def model_key(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, gradients_leave: bool
) -> str | None:
    """The key of a capture, or None where it depends on what cannot be looked into."""
    look = _Look()
    try:
        look.at((FORMAT, torch.__version__, sys.version_info[:3], code_version(Path(__file__).parent), gradients_leave))
        look.at(_settings(device_type(model, (args, kwargs))))
        look.at(model)
        look.read(model)
        look.geometry(model)
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        look.at(structure_data(spec))
        for leaf in leaves:
            # Inputs get memory of their own before they are traced.
            look.at(_geometry(leaf, memory=False) if isinstance(leaf, torch.Tensor) else leaf)
        look.sources()
    except (_Opaque, UnwrittenStructure, OSError, TypeError, NotImplementedError, RecursionError):
        return None
    return look.digest()


def _settings(device: str) -> tuple[Any, ...]:
    """Global settings that tracing looks at."""
    return (
        device,
        autocast.state(device),
        *tracing_switches().values(),
    )


def _geometry(tensor: torch.Tensor, *, memory: bool = True) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise _Opaque
    seen = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.requires_grad)
    place = (tensor.storage_offset(), tensor.untyped_storage().nbytes()) if memory else ()
    return *seen, tensor.is_conj(), tensor.is_neg(), *place


class _Look:
    """Hashes what it is shown, and remembers the code behind it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # what ``_seen`` names by address
        self._code: set[type | Callable[..., Any]] = set()

    def digest(self) -> str:
        return self._digest.hexdigest()

    def _add(self, *parts: object) -> None:
        for part in parts:
            text = str(part).encode()
            self._digest.update(f"{type(part).__name__}:{len(text)}:".encode())
            self._digest.update(text)

    def _module(self, module: torch.nn.Module) -> None:
        """A module's class, its mode, and all that it holds; of its parameters and buffers only which there are."""
        self._class(type(module))
        for key in sorted(vars(module)):
            if key in _BESIDE:
                continue
            self._add(key)
            if key in ("_parameters", "_buffers"):
                self._add([(name, tensor is None) for name, tensor in vars(module)[key].items()])
            else:
                self.at(vars(module)[key])

    def _traced(self, module: torch.fx.GraphModule) -> None:
        """A graph of ``torch.compile``: what it calls, the attributes that it names, and the lines that it is from."""
        for node in module.graph.nodes:
            self._add(node.op, node.name, where(node))
            if node.op in ("get_attr", "call_module"):
                attribute: Any = module
                for part in str(node.target).split("."):
                    attribute = getattr(attribute, part)
                self.at(attribute)
            else:
                self.at(node.target)
            self.at(torch.fx.node.map_arg((node.args, node.kwargs), lambda of: ("node", of.name)))

    def read(self, model: torch.nn.Module) -> None:
        """What code of the forward pass reads besides: globals, members of classes, and what functions hold."""
        reads = model_reads(model)
        own = set(map(id, model.modules()))
        found = [(name, where.get(name)) for where, name in reads.lookups.values()] + reads.held
        for name, value in sorted(found, key=lambda of: of[0]):
            self._add(name)
            self._value(Found(value), reads, own)
        for function in reads.functions:
            self._value(Found(function), reads, own)
            cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
            for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells):
                if isinstance(value, PLAIN):  # what is more is among ``held``
                    self._add(repr(value))
        for of in reads.classes:
            for name, value in vars(of).items():
                if reads.is_named(name) and isinstance(value, PLAIN):
                    self._add(of.__qualname__, name, repr(value))

    def _value(self, found: Found, reads: CodeReads, own: set[int]) -> None:
        """As far as the guard of a planned step compares it."""
        value = found.value
        if isinstance(value, PLAIN):
            self._add(type(value).__name__, repr(value))
        elif isinstance(value, torch.nn.Module):
            if id(value) not in own:
                raise _Opaque  # its tensors are constants of the trace
        elif isinstance(value, torch.Tensor):
            self.at(value)
        elif isinstance(value, types.FunctionType):
            self._add(value.__module__, value.__qualname__)
            self._bytecode(value.__code__)
        elif isinstance(value, types.MethodType):
            self._value(Found(value.__func__), reads, own)
            self._value(Found(value.__self__), reads, own)
        elif isinstance(value, types.ModuleType):
            self._add(types.ModuleType.__repr__(value))
        elif isinstance(value, type) or callable(value) or id(value) in self._seen or found.is_too_deep:
            self._add(getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__))
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._add(type(value).__qualname__, *(value if isinstance(value, dict) else ()))
            if hasattr(copied := copy_of(value), "tobytes"):
                self._add(copied.dtype, copied.shape, copied.tobytes().hex())
            value = value.data if isinstance(value, UserDict | UserList) else value
            for part in parts(value, reads):
                self._value(found.inside(part), reads, own)

    def geometry(self, model: torch.nn.Module) -> None:
        """Of parameters and buffers, and which of them are one memory, and one object."""
        memory: dict[int, int] = {}
        objects: dict[int, int] = {}
        for kind, named in (
            ("p", model.named_parameters(remove_duplicate=False)), ("b", model.named_buffers(remove_duplicate=False)),
        ):  # fmt: skip
            for name, tensor in named:
                place = memory.setdefault(tensor.untyped_storage()._cdata, len(memory))
                self._add(kind, name, place, objects.setdefault(id(tensor), len(objects)), _geometry(tensor))

    def at(self, thing: Any) -> None:
        """Plain data, containers, classes, functions, and objects that consist of these.

        Raises ``_Opaque`` for anything else.
        """
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
            self._add(type(thing).__name__, repr(thing))
            return
        if isinstance(thing, torch.dtype | torch.device | torch.layout | torch.memory_format | range) or thing is ...:
            self._add(repr(thing))
            return
        if isinstance(thing, slice):
            thing = ("slice", thing.start, thing.stop, thing.step)
        if id(thing) in self._seen:
            self._add("again", self._seen[id(thing)])
            return
        self._seen[id(thing)] = len(self._seen)
        self._alive.append(thing)
        if isinstance(thing, torch.Tensor):
            self._constant(thing)
        elif isinstance(thing, torch.fx.GraphModule):
            self._traced(thing)
        elif isinstance(thing, torch.nn.Module):
            self._module(thing)
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, _FUNCTIONS):
            self._function(thing)
        elif isinstance(thing, Mapping):
            self._add(type(thing).__qualname__, len(thing))
            for key, value in thing.items():
                self.at(key)
                self.at(None if key in _OF_THE_PROCESS else value)
        elif isinstance(thing, list | tuple | set | frozenset):
            items = sorted(thing, key=place_in_set) if isinstance(thing, set | frozenset) else thing
            self._add(type(thing).__qualname__, len(thing))
            for item in items:
                self.at(item)
        else:
            self._object(thing)

    def _object(self, thing: Any) -> None:
        """An object of a class that is written in Python, by what it holds."""
        of = type(thing)
        if of.__module__ == "builtins" or not hasattr(thing, "__dict__") or bool(getattr(of, "__slots__", None)):
            raise _Opaque
        self._class(of)
        for key in sorted(vars(thing).keys() - _OF_THE_PROCESS):
            self._add(key)
            self.at(vars(thing)[key])

    def _constant(self, tensor: torch.Tensor) -> None:
        """A tensor that is a plain attribute: its values may be looked at while tracing."""
        geometry = _geometry(tensor)
        if tensor.nbytes > MOST_CONSTANT_BYTES or tensor.is_meta or type(tensor) is not torch.Tensor:
            raise _Opaque
        self._add("tensor", geometry, tensor.detach().cpu().tolist())

    def _class(self, of: type) -> None:
        for base in of.__mro__:
            self._add("class", base.__module__, base.__qualname__)
            if base in self._code:
                continue
            self._code.add(base)
            for name, value in vars(base).items():  # which may have been replaced after it was written
                if isinstance(value, types.FunctionType):
                    self._add(name, value.__module__)
                    self._bytecode(value.__code__)

    def _function(self, function: Any) -> None:
        """A function with its defaults and what it closes over; a method with its object."""
        if isinstance(function, functools.partial):
            self.at((function.func, function.args, function.keywords))
            return
        if isinstance(function, types.MethodType):
            self.at(function.__self__)
            self.at(function.__func__)
            return
        self._add("function", getattr(function, "__module__", None), getattr(function, "__qualname__", repr(function)))
        if isinstance(function, types.FunctionType):
            self._code.add(function)
            self._bytecode(function.__code__)
            self.at(function.__defaults__)
            self.at(function.__kwdefaults__)
            for cell in function.__closure__ or ():
                self.at(cell.cell_contents)
        elif isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            self._add(str(function))

    def _bytecode(self, code: types.CodeType) -> None:
        self._add(code.co_code.hex(), code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._bytecode(constant)
            elif isinstance(constant, frozenset):  # in another order in each process
                self._add("frozenset", *sorted(map(repr, constant)))
            else:
                self._add(repr(constant))

    def sources(self) -> None:
        """The code of everything that was met, and all loaded code that is not of an installed package."""
        packages = {module.partition(".")[0] for of in self._code if (module := getattr(of, "__module__", None))}
        # Python's own version is in the key, and so is the content of a user's own files.
        for package in sorted(packages - sys.stdlib_module_names):
            path = getattr(sys.modules.get(package), "__file__", None)
            self._add(package, _version(package) if path is None or _not_installed(path) is None else None)
        files: dict[str, Path | None] = dict(_own_files())
        for of in self._code:
            name, path = _file_of(of)
            files[name] = path
        for name in sorted(files):
            self._add(name, _content(files[name]))


_FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket, types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip


def _file_of(of: Any) -> tuple[str, Path | None]:
    """Where a class or function is written: its module and file; no file for what is compiled.

    Raises ``_Opaque`` for a class that was typed in.
    """
    name = of.__module__ or ""
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is not None:
        return name, Path(path)
    if name == "__main__" and isinstance(of, type):
        raise _Opaque
    return name, None


def _own_files() -> Iterator[tuple[str, Path]]:
    """Loaded modules that are no installed package's: a user's own, whose functions the model may call."""
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not name.startswith("monet."):
            own = _not_installed(path)
            if own is not None and own.is_file():  # torch has modules whose files are made up
                yield name, own


@functools.cache
def _not_installed(path: str) -> Path | None:
    """The file, links followed; None for an installed package's. Asked once: a process has loaded thousands."""
    resolved = Path(path).resolve()
    return None if str(resolved).startswith(_INSTALLED) else resolved


@functools.cache
def _version(package: str) -> str | None:
    """Of the distribution with the package's name, or of those that have it: to find these, the files of all of them
    are read."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("monet-planner" if package == "monet" else package)
    names = _distributions().get(package, ())
    return ",".join(sorted(f"{name} {importlib.metadata.version(name)}" for name in set(names))) or None


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


def _content(path: Path | None) -> str:
    if path is None or path.suffix != ".py" or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
