"""Builds monet's CUDA allocator, and the tests' mock around it, against the installed PyTorch's CUDA build, and loads
both. Needs no GPU. Run with LD_BIND_NOW=1: what is missing is then missing at once, not at its first call."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys

import torch
from cuda_machine import built

from monet.native import cuda_allocator
from monet.native.compiling import compiler
from monet.native.library import build


def _readable(text: str) -> str:
    """C++ names as they are written in its sources."""
    if shutil.which("c++filt") is None:
        return text
    return re.sub(r"\b_Z\w+", lambda m: subprocess.check_output(["c++filt", m[0]], text=True).strip(), text)


class _Readable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _readable(super().format(record))


def _is_allocator_there() -> bool:
    lib = build(
        cuda_allocator.SOURCE, with_torch=True, openmp=False, with_cuda=True, include=cuda_allocator.INCLUDE
    )  # fmt: skip
    return lib is not None


def _is_mock_there() -> bool:
    try:
        built()
    except OSError as error:
        print(_readable(f"cuda_mock.cpp was built but does not load: {error}"), file=sys.stderr)
        return False
    except AssertionError:  # said by the build
        return False
    return True


def main() -> str | None:
    """What failed, or None."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Readable())
    logging.getLogger("monet").addHandler(handler)
    name = f"torch {torch.__version__}"
    if os.environ.get("LD_BIND_NOW") != "1":
        return "set LD_BIND_NOW=1: without it a symbol that is missing is not seen"
    if torch.version.cuda is None:
        return f"{name} is no CUDA build: there is nothing to build against"
    if compiler() is None:
        return "there is no C++ compiler (set CXX, or install g++)"
    found = {"cuda_allocator.cpp": _is_allocator_there(), "cuda_mock.cpp": _is_mock_there()}
    for source, there in found.items():
        print(f"{name}, CUDA {torch.version.cuda}: {source} {'is built and loads' if there else 'FAILS'}")
    failed = [source for source, there in found.items() if not there]
    return f"{name}: {', '.join(failed)} cannot be used; the reason is above" if failed else None


if __name__ == "__main__":
    sys.exit(main())
