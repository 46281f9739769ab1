"""Python's side of ``cuda_allocator.cpp``: arenas and recordings on a GPU."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from monet.errors import ExecutionError
from monet.native import allocator
from monet.native.library import build, declare

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "cuda_allocator.cpp"
INCLUDE = (Path(__file__).parent / "cuda_interface",)
"""Declarations of the CUDA runtime that c10's headers include: PyTorch's wheels have those headers, not CUDA's."""


@cache
def library() -> ctypes.PyDLL | None:
    """The installed allocator, or None (said once) where PyTorch has no CUDA or it cannot be built.

    Installing puts it in front of PyTorch's own for the whole process; what is not planned goes on to that one.
    """
    if torch.version.cuda is None:
        return None
    lib = build(SOURCE, with_torch=True, openmp=False, with_cuda=True, include=INCLUDE)
    if lib is None:
        logger.warning(
            "the arena for CUDA cannot be built here: planned steps run on PyTorch's CUDA allocator, and their peak is "
            "its own, not the plan's"
        )
        return None
    return prepare(lib)


def prepare(lib: ctypes.PyDLL) -> ctypes.PyDLL:
    """``lib`` with its signatures, installed. Raises ``ExecutionError`` where PyTorch has no such allocator."""
    declare(lib, allocator.arena_signatures())
    declare(
        lib,
        {
            "monet_uninstall": (ctypes.c_int, []),
            "monet_program_device": (None, [ctypes.c_void_p, ctypes.c_int]),
            "monet_enter": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64]),
            "monet_error": (ctypes.c_char_p, []),
            "monet_error_is_memory": (ctypes.c_int, []),
        },
    )

    def check(result: int, function: Any, arguments: tuple[Any, ...]) -> int:
        reason = lib.monet_error()
        if reason:
            refusal = torch.OutOfMemoryError if lib.monet_error_is_memory() else ExecutionError
            raise refusal(reason.decode())
        return result

    for name in ("monet_install", "monet_uninstall", "monet_arena_map", "monet_arena_ready", "monet_enter"):
        getattr(lib, name).errcheck = check
    lib.monet_install()
    return lib


def installed() -> ctypes.PyDLL:
    """The installed allocator. Raises ``ExecutionError`` where there is none."""
    lib = library()
    if lib is None:
        raise ExecutionError("the native allocator for CUDA is not available on this machine")
    return lib


def uninstall() -> None:
    """PyTorch's CUDA allocator is alone again. Raises ``ExecutionError`` while an arena has memory."""
    installed().monet_uninstall()


class CudaArena(allocator.Arena):
    """As ``Arena``, in memory of GPU number ``device``, on the stream that is current when a step begins.

    The memory is one allocation of PyTorch's own allocator, made by ``map`` or the first ``ready``. Where somebody
    holds blocks that outlive a step, ``ready`` leaves them the whole of it and makes another one. ``map`` and ``ready``
    raise ``torch.OutOfMemoryError``; they and ``enter`` raise ``ExecutionError`` where streams cannot be ordered, or
    where memory would change while a graph is captured.
    """

    def __init__(
        self,
        requests: Sequence[Sequence[tuple[int, int | None]]],
        arena_bytes: int,
        leaves: Sequence[Collection[int]] | None = None,
        *,
        device: int,
        library: ctypes.PyDLL | None = None,
    ) -> None:
        super().__init__(requests, arena_bytes, None, leaves, library=library or installed())
        self._lib.monet_program_device(self._program, device)


class CudaRecording(allocator.Recording):
    """As ``Recording``: what this thread requests of the GPU's memory, and releases, inside."""

    def __init__(self, library: ctypes.PyDLL | None = None) -> None:
        super().__init__(library or installed())

    def _begin(self) -> None:
        """No other thread asks for an operator's memory."""
