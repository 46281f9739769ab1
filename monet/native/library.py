"""The libraries of C++ that run inside a step: built against, or beside, the installed torch, and loaded."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from monet.native.compiling import compiler, shared_library

logger = logging.getLogger(__name__)


@cache
def _say_no_compiler() -> None:
    logger.warning(
        "no C++ compiler found (set CXX, or install g++): without the native arena and kernels, planned steps run on "
        "PyTorch's allocator, and their peak is its own, not the plan's"
    )


@cache
def build(
    source: Path,
    *,
    with_torch: bool,
    openmp: bool,
    with_cuda: bool = False,
    include: tuple[Path, ...] = (),
    defines: tuple[str, ...] = (),
) -> ctypes.PyDLL | None:
    """The shared library made from ``source``, or None (said once, with the reason) where it cannot be made.

    ``with_torch``: use c10's headers and symbols. ``with_cuda``: c10_cuda's symbols, too. ``include``: as
    ``shared_library`` takes it. ``defines``: macros, each ``NAME=VALUE``. ``openmp``: parallel loops on the OpenMP
    runtime that torch has loaded already; linking another one would start a second pool of threads.
    Loaded as a ``PyDLL``: calls keep the interpreter lock, which costs a third of releasing it.
    """
    if compiler() is None:
        _say_no_compiler()
        return None
    headers, library = (Path(torch.__file__).parent / name for name in ("include", "lib"))
    compile_flags = [f'-DMONET_TORCH_VERSION="{torch.__version__}"']  # another torch, another library
    compile_flags += [f"-D{macro}" for macro in defines]
    link_flags: list[str] = []
    if with_torch:
        compile_flags += [f"-I{headers}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        link_flags += [f"-L{library}", "-lc10", f"-Wl,-rpath,{library}"]
    if with_cuda:
        compile_flags.append("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")  # a header that not every wheel has
        link_flags.append("-lc10_cuda")
    if openmp:
        # Compiled only, not linked: the symbols come from the runtime that torch has made global.
        compile_flags.append("-fopenmp")
    target = shared_library(source, compile_flags, link_flags, include)
    if target is None:
        return None
    try:
        return ctypes.PyDLL(str(target))
    except OSError as error:
        logger.warning("%s was built but does not load: %s", source.name, error)
        return None


def declare(library: ctypes.CDLL, signatures: Mapping[str, tuple[object, Sequence[object]]]) -> None:
    """Tell ctypes the result and the arguments of each function, by its name."""
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def required(library: ctypes.PyDLL | None) -> ctypes.PyDLL:
    """The library that a plan's steps call. Raises ``RuntimeError`` where there is none."""
    if library is None:
        raise RuntimeError("the plan uses native kernels, which cannot be built on this machine")
    return library
