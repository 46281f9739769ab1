"""What the libraries behind a GPU's operators keep for themselves: cuBLAS a workspace for each thread and stream.

Such memory is requested by the first product there, and kept. In a planned step that would be a request that no
operator was measured with; so products run before the step, on both of its threads: the one that calls the model, and
autograd's own for the device, which runs the backward pass.
"""

from __future__ import annotations

import threading
from functools import cache

import torch

_WIDTH = 64
_ready: set[tuple[int, torch.device, int]] = set()
"""Threads, devices and streams whose libraries have what they keep."""


def make_ready(device: torch.device) -> None:
    """Let both threads of a step that begins now, on the current stream, request what their libraries keep. Once for
    each thread and stream; nothing on the CPU, and while a graph is captured: run a whole step before that."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            return
    key = threading.get_ident(), device, torch.cuda.current_stream(device).cuda_stream
    if key not in _ready:
        _products(device)
        _ready.add(key)


@cache
def kept_bytes(device: torch.device) -> int:
    """What the libraries of a step's two threads keep on a GPU, in bytes; 0 on the CPU.

    It is given back and requested anew here, so that it counts in full wherever products ran before. Not beside graphs
    that are there already, which use it: then what they have is not counted.
    """
    if device.type != "cuda":
        return 0
    if not any(segment["segment_pool_id"] != (0, 0) for segment in torch.cuda.memory_snapshot()):
        torch._C._cuda_clearCublasWorkspaces()
        _ready.clear()
    before = _requested_bytes(device)
    make_ready(device)
    return _requested_bytes(device) - before


def _requested_bytes(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"])


def _products(device: torch.device) -> None:
    """Forward and backward, with and without a bias, which are different libraries' in half precision."""
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for dtype in (torch.float32, torch.bfloat16):
            x, weight = (torch.ones(_WIDTH, _WIDTH, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
            bias = torch.zeros(_WIDTH, device=device, dtype=dtype, requires_grad=True)
            product = torch.nn.functional.linear(x @ weight, weight, bias)
            torch.autograd.grad(product.sum(), (x, weight, bias))
