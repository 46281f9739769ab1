"""The key of a measurement: what requests and times depend on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from monet.base.graph import Graph, Ref, Value
from monet.base.torch_switches import cost_switches
from monet.ops.kernel_names import call_name
from monet.ops.offers.implementation import Implementation
from monet.ops.strides import reach


def signature(implementation: Implementation, values: Mapping[str, Value]) -> str:
    """What the requests and the time depend on, besides the environment."""

    def describe(argument: Any) -> str:
        if isinstance(argument, Ref):
            v = values[argument.name]
            lazy = " conjugate" * v.conjugate + " negative" * v.negative
            # Some operators copy all of an input's storage (slice_scatter, copy).
            part = "" if v.storage_bytes == _reached_bytes(v) else f" of {v.storage_bytes}"
            return f"{v.dtype}{list(v.shape)}/{list(v.stride)}+{v.offset}{part}{lazy}"
        if isinstance(argument, list | tuple):
            return f"[{', '.join(describe(item) for item in argument)}]"
        return call_name(argument) if callable(argument) else str(argument)

    same = _repeated(implementation)
    arguments = ", ".join(describe(a) for a in implementation.args)
    named = ", ".join(f"{k}={describe(v)}" for k, v in implementation.kwargs)
    # Results are part of the key: a measurement also says that they have the graph's geometry.
    wanted = " ".join("_" if n is None else describe(Ref(n)) for n in implementation.outputs)
    return f"{implementation.call_name}({arguments}; {named})->{wanted}{same}"


def _reached_bytes(value: Value) -> int:
    """Of its storage, up to its last element."""
    return (value.offset + reach(value.shape, value.stride)) * value.dtype.itemsize if value.numel else 0


def _repeated(implementation: Implementation) -> str:
    """Which arguments are the same value (an in-place operator on its own input)."""
    names = [a.name for a in (*implementation.args, *(v for _, v in implementation.kwargs)) if isinstance(a, Ref)]
    return "" if len(set(names)) == len(names) else str([names.index(n) for n in names])


EVICTS = platform.machine() in ("x86_64", "aarch64")
"""Whether the processor can be told to take memory out of its caches, as an operator's inputs are before each timed run
on the CPU: ``monet_evict``."""
MOST_BETWEEN_BYTES = {"cpu": (4 if EVICTS else 64) << 20, "cuda": 128 << 20}
"""On the CPU, where inputs are evicted besides, this takes what a result is written to out of the nearest cache (2 MiB
a core). Plans of seven networks of ``networks.py``, predicted by measured seconds: .95 to 1.04 with 4 MiB, .94 to 1.04
with 8, .98 to 1.06 with 32; without evicting .87 to .96 with 32 MiB and .95 to 1.03 with 64, which takes twice as long.
More makes no difference on a GPU, where a step's memory is in the shared cache (60 MB on an H100) or behind it."""
GPU_BETWEEN_BYTES = 64 << 20
"""At least so much on a GPU: writing it takes longer than launching the operator that is timed next, which so begins
at once."""
LEAST_TOUCHED_BYTES = 16 << 20
"""A step whose tensors are smaller together finds most of them in the nearest caches."""


def between_bytes(graph: Graph) -> int:
    """How much a step touches between two uses of a tensor, for ``Bench``: about half of all it holds, as a power of
    two, in bytes; 0 for next to nothing on the CPU."""
    kind = graph.device.type
    touched = sum(value.storage_bytes for name, value in graph.values.items() if graph.storage(name) == name)
    least = GPU_BETWEEN_BYTES if kind == "cuda" else 0
    found = 0 if touched < LEAST_TOUCHED_BYTES else 1 << (touched.bit_length() - 2)
    return max(least, min(MOST_BETWEEN_BYTES.get(kind, 0), found))


def kept_under(graph: Graph) -> str:
    """What the keys of a step's measurements begin with, where they are kept: all that these depend on besides their
    signature."""
    evicted = "|evicted" if EVICTS and graph.device.type == "cpu" else ""
    return f"{environment(graph.device)}{evicted}|between {between_bytes(graph)}"


def environment(device: torch.device) -> str:
    """The part of a measurement's key that belongs to the machine, and to how PyTorch is set."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    threads = "" if device.type == "cuda" else f"|threads {torch.get_num_threads()}"
    return f"torch {torch.__version__}|{device.type} {name}{threads}|v3{cost_switches(device.type)}"
