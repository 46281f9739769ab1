"""When memory of an arena is used again: streams, ``record_stream`` and graphs of a made-up GPU."""

from __future__ import annotations

import random

import pytest
from cuda_machine import Machine, MadeUp

from monet.errors import ExecutionError
from monet.native.cuda_allocator import CudaArena


def tensor_of_one_step(machine: Machine) -> tuple[CudaArena, MadeUp]:
    """An arena of a step that makes one tensor, which has run, and that tensor."""
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    arena.enter(0)
    tensor = machine.allocate(1000)
    arena.leave()
    return arena, tensor


def test_another_stream_comes_after_the_last_step(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    for stream in (0, 1, 1, 0):
        machine.stream(stream)
        arena.ready()
        arena.enter(0)
        tensor = machine.allocate(1000)
        arena.leave()
        assert tensor.races(stream) == 0
        tensor.free()
    assert machine.journal() == [
        "alloc 1024 on 0", "event on 0", "wait on 1", "recordStream 1024 1", "event on 1", "wait on 0"
    ]  # fmt: skip
    arena.close()


def test_an_event_is_of_the_arenas_device(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    machine.stream(1)
    machine.lib.mock_device(1)
    machine.journal()
    arena.enter(0)
    arena.leave()
    machine.lib.mock_device(0)
    assert machine.journal() == ["event on 0", "wait on 1", "recordStream 1024 1"]
    arena.close()


def test_a_recorded_stream_is_waited_for_before_memory_is_used_again(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (8, 1024)], [(1000, 0)]], 2048)
    arena.ready()
    arena.enter(0)
    tensor = machine.allocate(1000)
    tensor.record_stream(0)  # its own
    tensor.record_stream(2)
    assert tensor.races(2) == 0
    machine.journal()
    tensor.free()
    last = machine.allocate(8)
    assert machine.journal() == ["event on 2", "wait on 0"], "also inside of an operator"
    arena.enter(1)
    following = machine.allocate(1000)
    arena.leave()
    assert following.races(0) == 0
    last.free()
    following.free()
    arena.close()


def test_a_recorded_stream_is_waited_for_before_the_arena_is_somebody_elses(machine: Machine) -> None:
    arena, tensor = tensor_of_one_step(machine)
    tensor.record_stream(2)
    assert tensor.races(2) == 0
    tensor.free()
    arena.close()
    following = machine.allocate(1024)
    assert following.races(0) == 0
    following.free()


def test_the_mock_finds_a_race(machine: Machine) -> None:
    """As if nobody had said that stream 2 uses the tensor: what the two tests above would see without events."""
    arena = machine.arena([[(1000, 0)], [(1000, 0)]], 1024)
    arena.ready()
    arena.enter(0)
    tensor = machine.allocate(1000)
    assert tensor.races(2) == 0
    tensor.free()
    arena.enter(1)
    following = machine.allocate(1000)
    arena.leave()
    assert following.races(0) == 1
    following.free()
    arena.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_races_whatever_streams_do(machine: Machine, seed: int) -> None:
    """Steps on any stream, tensors lent to any other; places are used again at random, arenas given back and made."""
    number = random.Random(seed)
    for _ in range(4):
        arena = machine.arena([[(256, 256 * place)] for place in range(4)], 1024)
        held: dict[int, MadeUp] = {}
        for _ in range(60):
            stream, place = number.randrange(4), number.randrange(4)
            machine.stream(stream)
            arena.ready()
            if place in held:
                held.pop(place).free()
            arena.enter(place)
            tensor = held[place] = machine.allocate(256)
            arena.leave()
            assert tensor.races(stream) == 0
            if number.random() < 0.5:
                other = number.randrange(4)
                tensor.record_stream(other)
                if other != stream:
                    machine.lib.mock_order(stream, other)  # as its user does
                assert tensor.races(other) == 0
        for tensor in held.values():
            tensor.free()
        arena.close()


def test_streams_of_another_device_are_refused(machine: Machine) -> None:
    arena, tensor = tensor_of_one_step(machine)
    with pytest.raises(RuntimeError, match=r"arena on cuda:0 is used on a stream of cuda:1; give that device a copy"):
        tensor.record_stream(100)
    tensor.free()
    arena.close()


def test_a_step_in_a_graph(machine: Machine) -> None:
    """Its memory stays as long as the graph, and comes from no pool of the graph's."""
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    with machine.capture(pool=7, stream=1):
        arena.ready()
        arena.enter(0)
        tensor = machine.allocate(1000)
        arena.leave()
        assert arena.contains(tensor.address)
        tensor.free()
    assert [line for line in machine.journal() if "Pool" in line] == ["beginAllocateToPool 7", "endAllocateToPool 7"]
    machine.lib.mock_share_pool(7)  # a second graph
    arena.close()
    assert machine.live_bytes == 1024
    machine.lib.mock_release_pool(7)
    assert machine.live_bytes == 1024, "the other graph"
    machine.lib.mock_release_pool(7)
    assert machine.live_bytes == 0


def test_a_pool_that_no_step_is_captured_in_keeps_nothing(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    with machine.capture(pool=8, stream=1):
        machine.stream(0)
        arena.enter(0)
        arena.leave()
    machine.lib.mock_release_pool(8)
    assert machine.journal()[-1] == "releasePool 8", "not every allocator can say who else uses a pool"
    arena.close()
    assert machine.live_bytes == 0


def test_what_a_graph_cannot_do_is_refused(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0)]], 1024, leaves=[[0]])
    with (
        machine.capture(pool=9, stream=1),
        pytest.raises(ExecutionError, match=r"run a whole step.*before the capture"),
    ):
        arena.ready()
    machine.stream(0)
    arena.ready()
    arena.enter(0)
    gradient = machine.allocate(1000)
    arena.leave()
    machine.lib.mock_busy(0, 1)
    with machine.capture(pool=9, stream=1):
        with pytest.raises(ExecutionError, match=r"torch.cuda.synchronize\(\) before the capture"):
            arena.enter(0)
        machine.lib.mock_busy(0, 0)
        with pytest.raises(ExecutionError, match="let go of its gradients"):
            arena.ready()
        arena.enter(0)
        arena.leave()
    gradient.free()
    machine.lib.mock_release_pool(9)
    machine.lib.mock_release_pool(9)
    arena.close()


def test_a_refused_step_is_not_entered(machine: Machine) -> None:
    """After the exception a request is nobody's."""
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.ready()
    machine.lib.mock_busy(0, 1)
    with machine.capture(pool=3, stream=1):
        with pytest.raises(ExecutionError):
            arena.enter(0)
        tensor = machine.allocate(1000)
    assert tensor.is_plain
    tensor.free()
    machine.lib.mock_release_pool(3)
    arena.close()
