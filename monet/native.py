"""Builds the project's small C++ files on first use, into a cache keyed by source and torch version."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import platformdirs
import torch

logger = logging.getLogger(__name__)

FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off")


def cache_folder() -> Path:
    """Where measured profiles and built libraries live; ``MONET_CACHE`` overrides it."""
    return Path(os.environ.get("MONET_CACHE") or platformdirs.user_cache_dir("monet"))


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the first of g++, c++, clang++ on the path, else None."""
    chosen = os.environ.get("CXX")
    if chosen is not None:
        return shutil.which(chosen)
    return next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)


@cache
def _say_no_compiler() -> None:
    logger.warning(
        "no C++ compiler found (set CXX, or install g++): without the native arena and kernels, planned steps run on "
        "PyTorch's allocator, and their peak is its own, not the plan's"
    )


def _cpu_model() -> str:
    """A library built with ``-march=native`` must not be served to another processor from a shared cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())


@cache
def build(source: Path, *, with_torch: bool, openmp: bool) -> ctypes.PyDLL | None:
    """The shared library made from ``source``, or None (said once, with the reason) where it cannot be made.

    ``with_torch``: use c10's headers and symbols. ``openmp``: parallel loops on the OpenMP runtime
    that torch has loaded already; linking another one would start a second pool of threads.
    Loaded as a ``PyDLL``: calls keep the interpreter lock, which costs a third of releasing it.
    """
    cxx = compiler()
    if cxx is None:
        _say_no_compiler()
        return None
    include = Path(torch.__file__).parent / "include"
    library = Path(torch.__file__).parent / "lib"
    torch_flags = (
        (f"-I{include}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}") if with_torch else ()
    )
    command = [*FLAGS, *torch_flags, *(("-fopenmp",) if openmp else ())]
    text = source.read_bytes()
    key = hashlib.sha256(
        b"\0".join([text, " ".join(command).encode(), torch.__version__.encode(), _cpu_model().encode(), cxx.encode()])
    ).hexdigest()[:20]
    target = cache_folder() / "native" / f"{source.stem}-{key}.so"
    if not target.exists():
        try:
            _compile(cxx, command, source, target, library if with_torch else None)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            logger.warning("%s could not be built by %s: %s", source.name, cxx, detail[-2000:])
            return None
    try:
        return ctypes.PyDLL(str(target))
    except OSError as error:
        logger.warning("%s was built but does not load: %s", source.name, error)
        return None


def _compile(cxx: str, flags: list[str], source: Path, target: Path, library: Path | None) -> None:
    """Compile and link in a temporary folder beside the target, then move into place (safe for several processes)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        thing, out = Path(folder) / "unit.o", Path(folder) / "unit.so"
        compile_flags = [flag for flag in flags if flag != "-shared"]
        subprocess.run(
            [cxx, *compile_flags, "-c", str(source), "-o", str(thing)], check=True, capture_output=True, text=True
        )
        # Linked without -fopenmp: the symbols come from the runtime that torch has made global.
        link = [f"-L{library}", "-lc10", f"-Wl,-rpath,{library}"] if library is not None else []
        subprocess.run([cxx, "-shared", str(thing), "-o", str(out), *link], check=True, capture_output=True, text=True)
        os.replace(out, target)
