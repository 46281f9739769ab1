"""The CUDA allocator around a made-up one of PyTorch's: what it serves, what it passes on, and when it gives back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from cuda_machine import Machine, raise_error
from repository import ROOT

from monet.errors import ExecutionError


def test_planned_requests_get_their_places(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (2000, 1024), (300, None)], [(500, 64)]], 4096)
    arena.map()
    assert machine.journal() == ["alloc 4096 on 0"]
    arena.enter(0)
    base = machine.allocate(1000)
    inside, outside, empty = machine.allocate(2000), machine.allocate(300), machine.allocate(0)
    arena.enter(1)
    later = machine.allocate(500)
    arena.leave()
    assert [inside.address - base.address, later.address - base.address] == [1024, 64]
    assert empty.address == 0
    assert not arena.contains(outside.address) and outside.is_plain
    assert machine.base(inside.address) == (base.address, 4096)
    assert machine.base(outside.address) == (outside.address, 300)
    assert machine.lib.mock_ipc_offset(later.address) == 64 + 64
    assert machine.journal() == ["alloc 300 on 0"]
    after = machine.allocate(1000)  # of no step
    assert after.is_plain
    statistics = arena.statistics()
    assert (statistics.served, statistics.misses) == (3, 0)
    for tensor in (base, inside, outside, empty, later, after):
        tensor.free()
    assert machine.live_bytes == 4096
    arena.close()
    assert machine.live_bytes == 0


def test_peak_is_arena_and_what_is_not_planned(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (1000, 1024)]], 2048)
    kept = machine.allocate(500)
    for _ in range(3):
        arena.ready()
        arena.enter(0)
        tensors = [machine.allocate(1000), machine.allocate(1000)]
        arena.leave()
        for tensor in tensors:
            tensor.free()
    assert machine.peak_bytes == 500 + 2048
    kept.free()
    arena.close()


def test_a_miss_is_counted_and_passed_on(machine: Machine) -> None:
    arena = machine.arena([[(64, 0)], [(1000, 0), (2000, 1024)]], 4096)
    arena.map()
    arena.enter(1)
    tensors = [machine.allocate(1001), machine.allocate(2000), machine.allocate(7)]
    arena.leave()
    assert [tensor.is_plain for tensor in tensors] == [True, False, True]
    statistics = arena.statistics()
    assert (statistics.served, statistics.misses, statistics.first_miss) == (1, 2, (1, 0, 1001, 1000))
    for tensor in tensors:
        tensor.free()
    arena.close()


def test_a_request_too_many_uses_up_no_planned_one(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (2000, 1024), (3000, 4096)]], 8192)
    arena.map()
    arena.enter(0)
    tensors = [machine.allocate(count) for count in (1000, 6272, 2000, 2000, 3000)]
    arena.leave()
    assert [tensor.is_plain for tensor in tensors] == [False, True, False, True, False]
    assert [tensors[n].address - tensors[0].address for n in (2, 4)] == [1024, 4096]
    statistics = arena.statistics()
    assert (statistics.served, statistics.misses, statistics.first_miss) == (3, 2, (0, 1, 6272, 2000))
    for tensor in tensors:
        tensor.free()
    arena.close()


def test_a_place_that_is_still_held_is_given_to_nobody(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (2000, 0)]], 2048)
    arena.map()
    arena.enter(0)
    first = machine.allocate(1000)
    early = machine.allocate(2000)
    first.free()
    later = machine.allocate(2000)
    arena.leave()
    assert early.is_plain and later.address == first.address
    assert arena.statistics().misses == 1
    early.free()
    later.free()
    arena.close()


def test_raw_allocate_gets_what_leaves_the_step(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (2000, 1024)]], 4096, leaves=[{0, 1}])
    arena.map()
    arena.enter(0)
    first, second = int(machine.lib.mock_raw_allocate(1000)), machine.allocate(2000)
    raise_error(machine.lib)
    arena.leave()
    assert second.address - first == 1024
    machine.raw_delete(first)
    assert arena.ready() == 4096, "the other one is held"
    second.free()
    assert arena.ready() == 0
    arena.close()


def test_other_threads_streams_and_devices_are_passed_on(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (1000, 1024)]], 2048)
    arena.map()
    arena.enter(0)
    found = []
    thread = threading.Thread(target=lambda: found.append(machine.allocate(1000)))
    thread.start()
    thread.join()
    assert arena.statistics().misses == 0, "another thread is no part of the step"
    machine.stream(3)
    found.append(machine.allocate(1000))
    machine.stream(0)
    machine.lib.mock_device(1)
    found.append(machine.allocate(1000))
    machine.lib.mock_device(0)
    assert all(tensor.is_plain for tensor in found)
    by_address = machine.raw_allocate(1000, stream=3)
    assert not arena.contains(by_address)
    planned = [machine.allocate(1000), machine.allocate(1000)]
    arena.leave()
    assert [arena.contains(tensor.address) for tensor in planned] == [True, True], "they take no turn of the plan's"
    assert arena.statistics().misses == 3, "each takes memory beside the plan"
    machine.raw_delete(by_address)
    for tensor in (*found, *planned):
        tensor.free()
    arena.close()


def test_requests_by_address(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (1000, 1024)]], 2048)
    arena.map()
    arena.enter(0)
    first, second, outside = machine.raw_allocate(1000), machine.raw_allocate(1000, 0), machine.raw_allocate(5)
    arena.leave()
    assert [arena.contains(address) for address in (first, second, outside)] == [True, True, False]
    assert second - first == 1024
    for address in (first, second, outside):
        machine.raw_delete(address)
    with pytest.raises(RuntimeError, match=r"arena is freed.*freed already"):
        machine.raw_delete(first)
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        machine.raw_delete(outside)
    machine.raw_delete(0)
    arena.close()


def test_memory_stays_while_somebody_holds_a_block(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (1000, 1024)]], 2048)
    arena.map()
    arena.enter(0)
    tensors = [machine.allocate(1000), machine.allocate(1000)]
    arena.leave()
    arena.close()
    tensors[0].free()
    assert machine.live_bytes == 2048
    tensors[1].free()
    assert machine.live_bytes == 0


def test_held_gradients_keep_their_memory(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0), (1000, 1024)]], 2048, leaves=[[1]])
    assert arena.ready() == 0
    arena.enter(0)
    activation, gradient = machine.allocate(1000), machine.allocate(1000)
    arena.leave()
    activation.free()
    assert arena.ready() == 2048, "the whole arena is left to the gradient"
    assert arena.ready() == 0
    arena.enter(0)
    others = [machine.allocate(1000), machine.allocate(1000)]
    arena.leave()
    assert others[1].address != gradient.address
    assert machine.live_bytes == 2 * 2048
    gradient.free()
    assert machine.live_bytes == 2048
    for tensor in others:
        tensor.free()
    assert arena.ready() == 0
    arena.close()


def test_arenas_of_several_programs(machine: Machine) -> None:
    large, small, other = (
        machine.arena([[(1000, place)]], size) for place, size in ((1024, 4096), (512, 2048), (0, 1024))
    )
    large.map()
    small.share(large)
    other.map()
    found = []
    for arena in (large, small, other):
        arena.enter(0)
        found.append(machine.allocate(1000))
        arena.leave()
    assert found[0].address - found[1].address == 512
    assert [large.contains(t.address) for t in found] == [True, True, False]
    assert machine.live_bytes == 4096 + 1024
    for tensor in found:
        tensor.free()
    small.close()
    other.close()
    large.close()


def test_out_of_memory_is_torchs(machine: Machine) -> None:
    arena = machine.arena([[(1000, 0)]], 40960)
    machine.lib.mock_capacity(1000)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 40960 bytes"):
        arena.map()
    machine.lib.mock_capacity(1 << 40)
    arena.map()
    arena.close()


def test_recording(machine: Machine) -> None:
    from monet.native.cuda_allocator import CudaRecording

    before = machine.allocate(10)
    with CudaRecording(machine.lib) as recording:
        first = machine.allocate(1000)
        first.record_stream(2)
        address = machine.raw_allocate(2000)
        before.free()
        machine.raw_delete(address)
        kept = machine.allocate(3000)
        first.free()
    assert [(event.index, event.bytes) for event in recording.events] == [
        (0, 1000), (1, 2000), (1, None), (2, 3000), (0, None)
    ]  # fmt: skip
    assert recording.events[0].pointer == first.address
    assert "recordStream 1000 2" in machine.journal(), "PyTorch's allocator knows it as its own"
    kept.free()


def test_everything_else_is_passed_on(machine: Machine) -> None:
    before = machine.lib.mock_forwards()
    assert machine.lib.mock_is_installed() == 2
    machine.lib.monet_uninstall()
    assert not machine.lib.mock_is_installed()
    assert machine.lib.mock_forwards() == before
    machine.lib.monet_install()
    assert machine.lib.mock_is_installed() == 2
    assert before.count(b"\n") >= 20  # those that torch 2.11 has; later ones have more


def test_uninstalling(machine: Machine) -> None:
    tensor = machine.allocate(100)
    arena = machine.arena([[(1000, 0)]], 1024)
    arena.map()
    with pytest.raises(ExecutionError, match="1 arenas still have memory; let go of the planned modules"):
        machine.lib.monet_uninstall()
    assert machine.lib.mock_is_installed()
    arena.unmap()
    machine.lib.monet_uninstall()
    assert not machine.lib.mock_is_installed()
    with pytest.raises(ExecutionError, match="not installed any more"):
        arena.map()
    tensor.free()  # of the time before
    machine.lib.monet_install()
    arena.map()
    arena.close()


def test_a_process_ends_while_memory_is_held() -> None:
    """Whatever is freed after the libraries' own ending, or never."""
    script = """
import atexit
from cuda_machine import Machine
machine = Machine()
arena, kept = machine.arena([[(1000, 0)], [(1000, 1024)]], 2048), machine.arena([[(8, 0)]], 1024)
arena.map()
kept.map()
arena.enter(0)
tensor = machine.allocate(1000)
tensor.record_stream(2)
arena.enter(1)
machine.allocate(1000)
arena.leave()
atexit.register(tensor.free)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
