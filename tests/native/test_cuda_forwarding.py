"""Every virtual function that the installed PyTorch's CUDA allocator has is one that monet's allocator answers."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from monet.native.cuda_allocator import SOURCE

HEADERS = Path(torch.__file__).parent / "include" / "c10"
BASES = {
    "core/Allocator.h": "Allocator",
    "core/CachingDeviceAllocator.h": "DeviceAllocator",
    "cuda/CUDACachingAllocator.h": "CUDAAllocator",
}
"""The classes that PyTorch's CUDA allocator derives from, each with the header that has it."""


def _class_text(header: str, name: str) -> str:
    """The body of a class, without comments."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", (HEADERS / header).read_text(), flags=re.DOTALL)
    begin = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    assert begin is not None, f"{header} has no class {name} any more"
    depth = 1
    for at in range(begin.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin.end() : at]
    raise AssertionError(f"{header}: {name} does not end")


def test_every_virtual_function_is_passed_on() -> None:
    """One that is not would answer with the base class's default, in silence: as memory that nobody annotates."""
    sources = "".join((SOURCE.parent / name).read_text() for name in ("cuda_allocator.cpp", "cuda_forwarding.h"))
    sources = re.sub(r"^#.*$", "", sources, flags=re.MULTILINE)
    ours = set(re.findall(r"(\w+)\([^;{}]*\)\s*(?:const\s*)?override", sources))
    theirs = {
        name
        for header, of in BASES.items()
        for name in re.findall(r"\bvirtual\b[^;{}(]*?(?<!~)\b(\w+)\s*\(", _class_text(header, of))
    }
    theirs -= set(BASES.values())  # destructors
    assert len(theirs) > 40
    assert theirs <= ours, sorted(theirs - ours)
