"""Copies that leave NaN behind: what a plan may no longer read, or not yet, is no longer what it was."""

from __future__ import annotations

import ctypes

import pytest
import torch

from monet.executor.copying.disk_copies import DiskCopies
from monet.native.channel import Channel
from monet.plans.format import COPY_ALIGNMENT


def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with NaN what has been written as soon as a plan may count on that, and what is read into before the copy
    begins, whole blocks of it. Returns what is counted: sources and destinations."""
    counts = [0, 0]
    write, wait, read = DiskCopies.write, DiskCopies.wait, Channel.read
    sources: dict[int, tuple[int, int]] = {}

    def poisoned_write(self: DiskCopies, tensor: torch.Tensor, place: int, size: int) -> None:
        write(self, tensor, place, size)
        sources[place] = tensor.untyped_storage().data_ptr(), size

    def poisoned_wait(self: DiskCopies, place: int) -> None:
        wait(self, place)
        if place in sources:
            pointer, size = sources.pop(place)
            ctypes.memset(pointer, 0xFF, size)
            counts[0] += 1

    def poisoned_read(self: Channel, pointer: int, place: int, size: int) -> int:
        ctypes.memset(pointer, 0xFF, -(-size // COPY_ALIGNMENT) * COPY_ALIGNMENT)
        counts[1] += 1
        return read(self, pointer, place, size)

    monkeypatch.setattr(DiskCopies, "write", poisoned_write)
    monkeypatch.setattr(DiskCopies, "wait", poisoned_wait)
    monkeypatch.setattr(Channel, "read", poisoned_read)
    return counts
