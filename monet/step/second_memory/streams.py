"""Copies between a GPU and pinned main memory, beside what the GPU computes.

Each direction has a stream of its own, so that one's copies are over in the order in which they are issued and the two
go on at once. A copy begins once the GPU has done what it was given before; whoever needs it makes what the GPU is
given later wait for its event. The CPU waits for neither. What is copied is held by the caller until then, so the
allocator needs no ``record_stream``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from monet.errors import ConfigError, ExecutionError


class Fence:
    """Events of the copies of one place in one direction, made once: the newest copy's are recorded anew."""

    def __init__(self) -> None:
        self.ready, self.done = torch.cuda.Event(), torch.cuda.Event()
        self._began, self._ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def hold_up(self, computing: Any) -> None:
        """What the stream is given from now on begins when the copy is over."""
        self._began.record(computing)
        computing.wait_event(self.done)
        self._ended.record(computing)

    def held_up_s(self) -> float:
        """How long the newest ``hold_up`` has kept its stream, in seconds, once that is over."""
        self._ended.synchronize()
        return float(self._began.elapsed_time(self._ended)) / 1e3


class CopyStreams:
    """A stream for each direction, on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ways = {write: torch.cuda.Stream(device) for write in (True, False)}

    def fence(self) -> Fence:
        return Fence()

    def copy(
        self, fence: Fence, target: torch.Tensor, source: torch.Tensor, *, write: bool, after: Fence | None = None
    ) -> None:
        """Issue a copy that begins after all that the GPU has been given by now, and after an earlier copy ``after``
        of the other direction. Raises ``ExecutionError`` while a graph is captured."""
        with torch.cuda.device(self._device):
            captured = torch.cuda.is_current_stream_capturing()
        if captured:
            raise ExecutionError(
                "a step with moves cannot be captured in a graph, since its waits are timed; plan without --offload or "
                "run the step outside of torch.cuda.graph"
            )
        stream = self._ways[write]
        fence.ready.record(torch.cuda.current_stream(self._device))
        stream.wait_event(fence.ready)
        if after is not None:
            stream.wait_event(after.done)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        fence.done.record(stream)

    def wait(self, fence: Fence) -> None:
        """What the GPU is given from now on begins when the copy is over."""
        fence.hold_up(torch.cuda.current_stream(self._device))

    def waited_s(self, fence: Fence) -> float:
        """How long the GPU has waited at the newest ``wait``, in seconds; the CPU waits until that is known."""
        return fence.held_up_s()

    def settle(self) -> None:
        """Until nothing is copied any more."""
        for stream in self._ways.values():
            stream.synchronize()


def pinned(size: int) -> torch.Tensor:
    """``size`` bytes of main memory that a GPU copies to and from by itself, in one piece.

    PyTorch's own pinned memory is rounded up to a power of two, so this is ordinary memory that CUDA is told of.
    Raises ``ExecutionError`` where it refuses.
    """
    memory = torch.empty(size, dtype=torch.uint8)
    runtime: Any = torch.cuda.cudart()
    error = int(runtime.cudaHostRegister(memory.data_ptr(), size, 0))
    if error != 0:
        raise ExecutionError(
            f"{size:,} bytes of main memory cannot be pinned (CUDA error {error}); give a smaller limit: "
            "--offload host,limit=BYTES"
        )
    return memory


def released(memory: torch.Tensor) -> None:
    """CUDA is told that ``pinned`` memory is ordinary again; once nothing is copied any more."""
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(memory.data_ptr())


def available_bytes() -> int:
    """Main memory that could be had now without taking it from others."""
    known = Path("/proc/meminfo")
    for line in known.read_text().splitlines() if known.exists() else []:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    raise ConfigError("how much main memory is left is not known here; give a limit: --offload host,limit=BYTES")


def check_host_room(size: int) -> None:
    """Raises ``ConfigError`` where less main memory than ``size`` bytes is left."""
    left = available_bytes()
    if size > left:
        raise ConfigError(
            f"the second memory needs {size:,} bytes of main memory, {size - left:,} more than is left; free some, or "
            "give a limit: --offload host,limit=BYTES"
        )


def device_name(device: torch.device) -> str:
    """Names the GPU that copies, for what was measured of it."""
    return f"cuda {torch.cuda.get_device_name(device)}"
