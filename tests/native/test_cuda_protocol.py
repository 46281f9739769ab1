"""The CUDA allocator under whatever a process does to it, against what it must keep.

Random sequences of steps on any stream, requests as planned and not, blocks that are lent to other streams, held over
steps or freed on other threads, arenas that end, graphs that are captured and released, and memory that runs out.
No two live blocks share a byte, every block is freed once, and work on the same bytes is ordered.
"""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import dataclass, field

import pytest
import torch
from cuda_machine import Machine, MadeUp

from monet.errors import ExecutionError
from monet.native.cuda_allocator import CudaArena

STREAMS = 4
PLACES = (0, 256, 512, 768, 1024, 1536)
SIZES = (200, 256, 100, 250, 500, 512)
BYTES = 2048
SHORT = (ExecutionError, torch.OutOfMemoryError, RuntimeError)


@dataclass
class Process:
    """What a process holds: arenas with their requests, and live blocks by where they are."""

    machine: Machine
    number: random.Random
    arenas: list[CudaArena] = field(default_factory=list)
    held: list[MadeUp] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    pools: list[int] = field(default_factory=list)
    last_pool: int = 0
    freed: int = 0

    def new_arena(self) -> None:
        """Each request in a step of its own; the last may outlive its step."""
        steps = [[(size, place)] for size, place in zip(SIZES, PLACES, strict=True)]
        leaves = [[0] if step == len(steps) - 1 else [] for step in range(len(steps))]
        self.arenas.append(self.machine.arena(steps, BYTES, leaves=leaves))

    def step(self, stream: int) -> None:
        """Some steps of an arena, one after another, with requests that are planned, too many or of other sizes."""
        if not self.arenas:
            self.new_arena()
        arena = self.number.choice(self.arenas)
        self.machine.stream(stream)
        arena.ready()
        for step in sorted(self.number.sample(range(len(PLACES)), self.number.randrange(1, len(PLACES)))):
            if any(self._is_at(tensor, arena, PLACES[step], SIZES[step]) for tensor in self.held):
                continue  # a plan gives a place to one at a time
            arena.enter(step)
            try:
                for count in self.number.choice([[SIZES[step]], [77, SIZES[step]], [SIZES[step], 99], []]):
                    self.made(self.machine.allocate(count), count, stream)
            finally:
                arena.leave()
            if self.number.random() < 0.5 and self.held:
                self.free(self.number.randrange(len(self.held)))

    def _is_at(self, tensor: MadeUp, arena: CudaArena, place: int, size: int) -> bool:
        base = int(self.machine.lib.monet_arena_base(arena.handle))
        begin = tensor.address - base
        return begin < place + size and place < begin + self.sizes[tensor.handle]

    def made(self, tensor: MadeUp, count: int, stream: int) -> None:
        """It shares no byte with another, and what its stream does with it comes after all that was done there."""
        for other in self.held:
            apart = tensor.address + count <= other.address
            assert apart or other.address + self.sizes[other.handle] <= tensor.address, "two live blocks share a byte"
        assert tensor.races(stream) == 0, "memory is used again before the work on it is over"
        self.held.append(tensor)
        self.sizes[tensor.handle] = count

    def free(self, position: int) -> None:
        """On this thread or another."""
        tensor = self.held.pop(position)
        self.sizes.pop(tensor.handle)
        if self.number.random() < 0.2:
            thread = threading.Thread(target=tensor.free)
            thread.start()
            thread.join()
        else:
            tensor.free()
        self.freed += 1

    def lend(self, stream: int) -> None:
        """Another stream works on a block, which PyTorch's allocator is told."""
        if self.held:
            tensor = self.number.choice(self.held)
            tensor.record_stream(stream)
            self.machine.lib.mock_order(self.number.randrange(STREAMS), stream)
            for source in range(STREAMS):
                self.machine.lib.mock_order(source, stream)
            assert tensor.races(stream) == 0

    def capture(self, stream: int) -> None:
        """A graph in which a step runs, or is refused; as a user must, after all that streams have been given."""
        for source in range(STREAMS):
            self.machine.lib.mock_order(source, stream)
        self.last_pool += 1
        self.pools.append(self.last_pool)
        with self.machine.capture(self.last_pool, stream), contextlib.suppress(*SHORT):
            self.step(stream)

    def release(self) -> None:
        if self.pools:
            self.machine.lib.mock_release_pool(self.pools.pop(self.number.randrange(len(self.pools))))

    def out_of_memory(self, stream: int) -> None:
        """A step that finds none leaves everything as it is."""
        self.machine.lib.mock_capacity(self.machine.live_bytes)
        with contextlib.suppress(*SHORT):
            self.new_arena()
            self.step(stream)
        self.machine.lib.mock_capacity(1 << 40)

    def act(self) -> None:
        stream, action = self.number.randrange(STREAMS), self.number.random()
        if action < 0.5:
            self.step(stream)
        elif action < 0.65 and self.held:
            self.free(self.number.randrange(len(self.held)))
        elif action < 0.78:
            self.lend(stream)
        elif action < 0.84:
            self.new_arena()
        elif action < 0.9 and self.arenas:
            self.arenas.pop(self.number.randrange(len(self.arenas))).close()
        elif action < 0.94:
            self.capture(stream)
        elif action < 0.97:
            self.release()
        else:
            self.out_of_memory(stream)

    def end(self) -> None:
        """Nothing is left, whatever order things end in."""
        ends = [*(arena.close for arena in self.arenas), *(tensor.free for tensor in self.held)]
        ends += [self.release] * len(self.pools)
        self.number.shuffle(ends)
        for end in ends:
            end()
        self.machine.stream(0)
        assert self.machine.live_bytes == 0, "memory is lost"


def run(machine: Machine, seeds: range) -> int:
    freed = 0
    for seed in seeds:
        machine.lib.mock_forget()
        process = Process(machine, random.Random(seed))
        for _ in range(process.number.randrange(5, 30)):
            process.act()
        process.end()
        freed += process.freed
    return freed


def test_whatever_a_process_does(machine: Machine) -> None:
    assert run(machine, range(150)) > 500


@pytest.mark.slow
def test_ten_thousand_sequences(machine: Machine) -> None:
    assert run(machine, range(1000, 11000)) > 30_000
