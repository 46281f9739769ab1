"""Kernels of programs by Inductor, PyTorch's compiler: one for each program and geometry of its inputs.

Inductor keeps what it has compiled on disk (``TORCHINDUCTOR_CACHE_DIR``), so that a second process compiles nothing.
Its kernels ask for their results through the allocator of the step's device, as aten's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from monet.ops.fusion.fused import Fused

Kernel = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

SETTINGS: dict[str, Any] = {
    "memory_planning": False,
    "max_autotune": False,
    "triton.cudagraphs": False,
    "fallback_random": True,
    "deterministic": True,
}
"""What keeps a kernel's results and requests the same at every call."""

_kernels: dict[Any, Kernel] = {}


def kernel_of(fused: Fused, inputs: Sequence[torch.Tensor]) -> Kernel:
    """The kernel for inputs of this geometry; compiled where this process has none yet."""
    key = fused, tuple((tensor.dtype, tensor.shape, tensor.stride(), tensor.device) for tensor in inputs)
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = _compiled(fused, inputs)
    return found


def _compiled(fused: Fused, inputs: Sequence[torch.Tensor]) -> Kernel:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=False) as mode, config.patch(SETTINGS):
        fake = [
            torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            for tensor in inputs
        ]
        graph = make_fx(lambda *given: fused.run(*given), decomposition_table=select_decomp_table())(*fake)
        with torch._guards.tracing(torch._guards.TracingContext(mode)):
            kernel: Kernel = compile_fx_inner(graph, fake)
    return kernel
