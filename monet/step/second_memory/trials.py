"""What a second memory's bandwidth is measured with: copies of pieces, and an operator to run beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch

from monet.native.channel import ALIGNMENT, Channel
from monet.plans.format import whole_blocks
from monet.step.second_memory.streams import CopyStreams, pinned, released

PIECE = 64 << 20
PIECES = 8
HOST_PIECES = 3
"""Of pinned memory: two are under way at a time."""
BESIDE, HOST_BESIDE = 1024, 4096
"""Rows and columns of the product beside which copies are measured."""


class Trial(Protocol):
    """``issue``: begins to copy the n-th piece of ``piece`` bytes, and says what to ``wait`` for."""

    piece: int

    def issue(self, n: int, *, write: bool) -> Any: ...

    def wait(self, ticket: Any) -> None: ...

    def copied_bytes(self) -> int:
        """So far, both ways."""

    def product(self) -> None:
        """An operator, until it is over."""

    def close(self) -> None: ...


class DiskTrial:
    """A file of some hundred megabytes. Raises ``ExecutionError`` where the folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.piece = PIECE
        self._channel = Channel(folder, PIECES * PIECE)
        self._one = torch.rand(BESIDE, BESIDE)
        self._memory = torch.empty(PIECE + ALIGNMENT, dtype=torch.uint8).random_()
        self._pointer = whole_blocks(self._memory.data_ptr())
        try:
            for n in range(PIECES):  # the first write to a place also makes it
                self.wait(self.issue(n, write=True))
        except BaseException:
            self.close()
            raise

    def issue(self, n: int, *, write: bool) -> int:
        begin = self._channel.write if write else self._channel.read
        return begin(self._pointer, n % PIECES * self.piece, self.piece)

    def wait(self, ticket: int) -> None:
        self._channel.wait(ticket)

    def copied_bytes(self) -> int:
        copied = self._channel.copied()
        return copied.written_bytes + copied.read_bytes

    def product(self) -> None:
        torch.mm(self._one, self._one)

    def close(self) -> None:
        self._channel.close()


class HostTrial:
    """Pinned main memory, and a piece of a GPU's. Raises ``ExecutionError`` where none can be pinned."""

    def __init__(self, device: torch.device) -> None:
        self.piece, self._device = PIECE, device
        self._streams = CopyStreams(device)
        self._one = torch.rand(HOST_BESIDE, HOST_BESIDE, device=device)
        self._pieces = torch.zeros(HOST_PIECES, PIECE, dtype=torch.uint8, device=device)
        self._memory = pinned(HOST_PIECES * PIECE)
        self._copied = 0
        torch.cuda.synchronize(device)

    def issue(self, n: int, *, write: bool) -> Any:
        k = n % HOST_PIECES
        here, there = self._pieces[k], self._memory[k * self.piece : (k + 1) * self.piece]
        fence = self._streams.fence()
        self._streams.copy(fence, there if write else here, here if write else there, write=write)
        return fence

    def wait(self, ticket: Any) -> None:
        ticket.done.synchronize()
        self._copied += self.piece

    def copied_bytes(self) -> int:
        return self._copied

    def product(self) -> None:
        torch.mm(self._one, self._one)
        torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        self._streams.settle()
        released(self._memory)
