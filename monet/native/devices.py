"""The native side of a device: its allocator, arenas and recordings, and the peak that was measured there."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence

import torch

from monet.errors import ConfigError
from monet.native import allocator, cuda_allocator


def library(device: torch.device) -> ctypes.PyDLL | None:
    """The allocator of that kind of device, installed; None where there is none (said once): PyTorch's own serves."""
    if device.type == "cpu":
        return allocator.library()
    return cuda_allocator.library() if device.type == "cuda" else None


def require_plannable(device: torch.device) -> None:
    """Raises ``ConfigError`` where a GPU is set up in a way that leaves what a step asks for unknown."""
    if device.type != "cuda":
        return
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise ConfigError(
            f"PyTorch's allocator for CUDA is {backend}, which does not tell what is requested: leave "
            f"backend:{backend} out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF)"
        )
    if torch.backends.cudnn.benchmark:
        raise ConfigError(
            "torch.backends.cudnn.benchmark is on: cuDNN then tries kernels, each with a workspace of its own, in the "
            "first step of every thread, which is in no plan; set it to False"
        )


def arena(
    device: torch.device,
    requests: Sequence[Sequence[tuple[int, int | None]]],
    arena_bytes: int,
    crew: Sequence[tuple[int, int]] | None = None,
    leaves: Sequence[Collection[int]] | None = None,
) -> allocator.Arena:
    """An arena there, as ``Arena`` takes it. Raises ``ExecutionError`` where ``library`` is None."""
    if device.type == "cpu":
        return allocator.Arena(requests, arena_bytes, crew, leaves)
    index = torch.cuda.current_device() if device.index is None else device.index
    return cuda_allocator.CudaArena(requests, arena_bytes, leaves, device=index)


def recording(device: torch.device) -> allocator.Recording:
    """What is requested there. Raises ``ExecutionError`` where ``library`` is None."""
    return allocator.Recording() if device.type == "cpu" else cuda_allocator.CudaRecording()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Measure the peak from now on. Nothing where nobody counts bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif allocator.available():
        allocator.reset_peak()


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that tensors and arenas asked for at once since ``reset_peak``; None where nobody counts them.

    On a GPU: PyTorch's ``requested_bytes``, before it rounds each request up. There, an arena is one request.
    """
    if device.type == "cuda":
        peak = torch.cuda.memory_stats(device).get("requested_bytes.all.peak")  # nothing is counted without a GPU
        return None if peak is None else int(peak)
    return allocator.peak_bytes() if allocator.available() else None
