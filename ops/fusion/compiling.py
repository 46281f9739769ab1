"""Kernels of programs by Inductor, PyTorch's compiler: one for each program and geometry of its inputs.

Inductor keeps what it has compiled on disk (``TORCHINDUCTOR_CACHE_DIR``), so that a second process compiles nothing.
Its kernels ask for their results through the allocator of the step's device, as aten's do.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from monet.errors import ExecutionError
from monet.native.compiling import compiler

if TYPE_CHECKING:
    from monet.ops.fusion.fused import Fused

logger = logging.getLogger(__name__)
Kernel = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

SETTINGS: dict[str, Any] = {
    "memory_planning": False,
    "max_autotune": False,
    "triton.cudagraphs": False,
    "fallback_random": True,
    "deterministic": True,
}
"""What keeps a kernel's results and requests the same at every call."""
if platform.machine() == "x86_64":
    # Inductor compiles and loads a program for each set of vector instructions that the processor has, 7 s in all, to
    # know whether PyTorch was built with an older compiler than this one. It was not since long before 2.11.
    SETTINGS["cpp.vec_isa_ok"] = True

Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], torch.device]
"""Of a tensor: dtype, shape, strides, device."""


@cache
def can_compile(kind: str) -> bool:
    """Whether there are kernels for a type of device; where there are none, a warning says so once."""
    if kind != "cpu" or compiler() is not None:
        return True
    logger.warning(
        "fused regions need a C++ compiler (g++ or clang++ on the path, or CXX), and there is none: planning without "
        "them"
    )
    return False


_kernels: dict[tuple[Fused, tuple[Geometry, ...]], Kernel] = {}


def is_known(fused: Fused, inputs: tuple[Geometry, ...]) -> bool:
    """Whether this process has the kernel."""
    return (fused, inputs) in _kernels


def kernel_of(fused: Fused, inputs: tuple[Geometry, ...]) -> Kernel:
    """The kernel for inputs of this geometry; compiled where this process has none yet. A step that is measured or
    planned must not come to that amid its requests.

    Raises:
        ExecutionError: the compiler fails.
    """
    found = _kernels.get((fused, inputs))
    if found is None:
        try:
            found = _kernels[fused, inputs] = _compile(fused, inputs)
        except Exception as error:  # of whatever kind: it is not ours
            raise ExecutionError(
                f"PyTorch's compiler failed on {fused}: {type(error).__name__}: {error}; plan without fused regions"
            ) from error
    return found


def import_compiler() -> None:
    """Takes a second, and most processes compile nothing."""
    import torch._inductor.compile_fx
    import torch._inductor.decomposition
    import torch.fx.experimental.proxy_tensor  # noqa: F401


def _compile(fused: Fused, inputs: tuple[Geometry, ...]) -> Kernel:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # No size is symbolic, but Inductor looks for nothing on disk without an environment of such sizes.
    with torch.no_grad(), FakeTensorMode(shape_env=ShapeEnv()) as mode, config.patch(SETTINGS):
        fake = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device) for dtype, shape, stride, device in inputs
        ]
        graph = make_fx(lambda *given: fused.run(*given), decomposition_table=select_decomp_table())(*fake)
        strides = [result.stride() for result in fused.run(*fake)]
        with torch._guards.tracing(torch._guards.TracingContext(mode)):
            kernel: Kernel = compile_fx_inner(graph, fake)
    return partial(_laid_out, kernel, strides)


def _laid_out(kernel: Kernel, strides: Sequence[tuple[int, ...]], inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The kernel's results in the strides of aten's, which what comes after is planned for: a compiler has its own."""
    return [
        found if found.stride() == wanted else torch.empty_strided(found.shape, wanted, dtype=found.dtype).copy_(found)
        for found, wanted in zip(kernel(inputs), strides, strict=True)
    ]
