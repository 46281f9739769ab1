"""CUDA's streams and events on the CPU: what they promise of the order of copies, and nothing more.

What the GPU computes runs at once. Copies wait in their stream until something waits for them, or until ``eager`` says
so, and are made then: one that is waited for too late finds its source overwritten, or its target used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Event:
    """``recorded``: how often it was recorded; ``reached``: which of these its stream has got to."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.recorded = self.reached = 0
        self.stream: Stream | None = None
        self.timed = enable_timing

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        self.stream = stream
        number = self.recorded

        def reach() -> None:
            self.reached = number

        stream.add(reach)

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run_to(lambda: self.reached >= self.recorded)

    def elapsed_time(self, later: Event) -> float:
        assert self.timed and later.timed
        return 2.0


@dataclass(eq=False)
class Stream:
    """``at_once``: the one that computes."""

    at_once: bool = False
    queue: list[Callable[[], None]] = field(default_factory=list)

    def add(self, item: Callable[[], None]) -> None:
        if self.at_once:
            item()
        else:
            self.queue.append(item)

    def wait_event(self, event: Event) -> None:
        number = event.recorded
        stream = event.stream

        def wait() -> None:
            if event.reached < number:
                assert stream is not None and stream is not self, "waits for itself"
                stream.run_to(lambda: event.reached >= number)

        self.add(wait)

    def run_to(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            assert self.queue, "waits for what was never issued"
            self.queue.pop(0)()

    def synchronize(self) -> None:
        while self.queue:
            self.queue.pop(0)()


class _Taken(TorchDispatchMode):
    """Copies inside of the context go into a stream."""

    def __init__(self, stream: Stream, copied: Callable[[Stream], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream, self._copied = stream, copied

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.ops.aten.copy_.default, function
        target, source, non_blocking = args
        assert non_blocking
        self._stream.add(lambda: target.copy_(source))
        self._copied(self._stream)
        return target


def simulated_cuda(monkeypatch: pytest.MonkeyPatch, eager: Callable[[], int]) -> SimpleNamespace:
    """Puts streams, events and pinned memory in the place of PyTorch's. ``eager``: how many items of a stream run at
    once after each copy that is issued. Returns counts of ``copies``, and of memory that is ``pinned``; ``capturing``
    says whether a graph is captured on the model's GPU."""
    computing = Stream(at_once=True)
    counts = SimpleNamespace(copies=0, pinned=0, capturing=False)

    def copied(stream: Stream) -> None:
        counts.copies += 1
        for _ in range(min(eager(), len(stream.queue))):
            stream.queue.pop(0)()

    @contextlib.contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        with _Taken(stream, copied):
            yield

    def register(pointer: int, size: int, flags: int) -> int:
        counts.pinned += 1
        return 0

    def unregister(pointer: int) -> int:
        counts.pinned -= 1
        return 0

    current: list[torch.device] = []  # none: another GPU than the model's, where nothing is captured

    @contextlib.contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    replaced: dict[str, Any] = {
        "Event": Event,
        "Stream": lambda device: Stream(),
        "current_stream": lambda device: computing,
        "stream": inside,
        "device": on,
        "is_current_stream_capturing": lambda: counts.capturing and bool(current),
        "get_device_name": lambda device: "simulated",
        "cudart": lambda: SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister),
        "synchronize": lambda device: None,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return counts
