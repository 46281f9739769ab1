"""What the forward pass of a model reads in Python: of all its modules, their hooks, and the objects that they hold."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from monet.capture.guards.code_reads import CodeReads
from monet.capture.guards.contents import PLAIN
from monet.capture.guards.module_hooks import FORWARD, only_looks

OPAQUE = (torch.Tensor, torch.nn.Module, types.ModuleType, type, torch.Generator)
"""What is not looked into as an object: it is compared by identity, or elsewhere."""
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
MOST_DEPTH = 6
"""Of containers in containers: a deeper one is compared by identity alone."""


def model_reads(model: torch.nn.Module, *, own_hooks: bool = True) -> CodeReads:
    """All that the modules' forward passes may read. ``own_hooks``: those of the model itself, too."""
    reads = CodeReads()
    modules = list(model.modules())
    for module in modules:
        reads.add_class(type(module))
        reads.add(vars(module).get("forward"))
        for hooks in FORWARD if own_hooks or module is not model else ():
            for hook in vars(module)[hooks].values():
                if not only_looks(hook):
                    _read(reads, hook, 0)
    known = -1
    while known != len(reads.names) + len(reads.held):  # until no new name is met
        known = len(reads.names) + len(reads.held)
        reads.close()
        for module in modules:
            for name, value in vars(module).items():
                if name not in OF_EVERY_MODULE and reads.is_read(name):
                    _read(reads, value, 0)
        for _, value in list(reads.held):
            _read(reads, value, 0)
    return reads


def _read(reads: CodeReads, value: Any, depth: int) -> None:
    if isinstance(value, (*PLAIN, *OPAQUE)) or reads.add(value) or depth > MOST_DEPTH:
        return
    for part in _parts(value, reads):
        _read(reads, part, depth + 1)
    if not isinstance(value, list | tuple | dict | set | frozenset):
        reads.add_class(type(value))


def _parts(value: Any, reads: CodeReads) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)
    else:
        yield from [part for name, part in list(getattr(value, "__dict__", {}).items()) if reads.is_read(name)]


def is_kept_by_torch(module: torch.nn.Module, key: str) -> bool:
    """Of the lists that a recurrent layer makes anew of its parameters, which are looked at themselves."""
    return isinstance(module, torch.nn.RNNBase) and key in ("_flat_weights", "_flat_weight_refs")
