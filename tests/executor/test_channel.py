"""The channel to a file on a disk: bytes come back as they were, and what goes wrong is said."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from interrupts import default_interrupts
from moved_steps import disk_or_skip

from monet.errors import ExecutionError
from monet.native.channel import ALIGNMENT, Channel

CHUNK = 4 << 20
SHORT = -1002
SIZES = (1, 63, 4095, 4096, 4097, 100_003, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 12_345)


def blocks(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Memory:
    """Aligned memory for whole blocks, and ``ALIGNMENT`` bytes behind them that nothing may touch."""

    def __init__(self, size: int, seed: int | None = None) -> None:
        self.size = size
        self._whole = torch.zeros(blocks(size) + 2 * ALIGNMENT, dtype=torch.uint8)
        self.pointer = -(-self._whole.data_ptr() // ALIGNMENT) * ALIGNMENT
        begin = self.pointer - self._whole.data_ptr()
        self.bytes = self._whole[begin : begin + size]
        self.behind = self._whole[begin + blocks(size) :]
        if seed is not None:
            self.bytes.random_(generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return disk_or_skip(tmp_path)


@pytest.fixture(params=["direct", "buffered"])
def channel(request: pytest.FixtureRequest, disk: Path) -> Iterator[Channel]:
    opened = Channel(disk, 64 << 20, buffered=request.param == "buffered")
    yield opened
    opened.disturb()
    opened.close()


def round_trip(channel: Channel, size: int, place: int, seed: int) -> None:
    source, target = Memory(size, seed), Memory(size)
    channel.wait(channel.write(source.pointer, place, size))
    channel.wait(channel.read(target.pointer, place, size))
    assert torch.equal(source.bytes, target.bytes)
    assert not target.behind.any()


@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back(channel: Channel, size: int) -> None:
    for seed, place in enumerate((0, ALIGNMENT, 7 * ALIGNMENT, (64 << 20) - blocks(size))):
        round_trip(channel, size, place, seed)


def test_nothing_at_all_can_be_copied(channel: Channel) -> None:
    channel.wait(channel.write(Memory(1).pointer, 0, 0))
    assert channel.copied().written_bytes == 0


def test_many_under_way(channel: Channel) -> None:
    sources = [Memory(SIZES[n % 9], n) for n in range(30)]
    places = [sum(blocks(s.size) for s in sources[:n]) for n in range(30)]
    for memory, place in zip(sources, places, strict=True):
        channel.write(memory.pointer, place, memory.size)
    targets = [Memory(s.size) for s in sources]
    order = random.Random(0).sample(range(30), 30)
    tickets = [(n, channel.read(targets[n].pointer, places[n], sources[n].size)) for n in order]
    for n, ticket in random.Random(1).sample(tickets, 30):
        channel.wait(ticket)
        assert torch.equal(sources[n].bytes, targets[n].bytes)
    assert channel.copied().written_bytes == channel.copied().read_bytes == sum(s.size for s in sources)


def test_copies_are_executed_in_the_order_of_their_issue(channel: Channel) -> None:
    """To and from one place, with nothing waited for in between, while each copy takes a while."""
    channel.disturb(delay_s=0.002)
    sources = [Memory(5000, n) for n in range(10)]
    targets = [Memory(5000) for _ in sources]
    for source, target in zip(sources, targets, strict=True):
        channel.write(source.pointer, 0, 5000)
        last = channel.read(target.pointer, 0, 5000)
    channel.wait(last)
    assert all(torch.equal(s.bytes, t.bytes) for s, t in zip(sources, targets, strict=True))


def test_a_wait_is_for_its_copy(channel: Channel) -> None:
    """A copy is over after its wait, whatever is under way behind it."""
    first, second = Memory(CHUNK, 0), Memory(CHUNK, 1)
    channel.wait(channel.write(first.pointer, 0, CHUNK))
    channel.disturb(delay_s=0.1)
    target = Memory(CHUNK)
    ticket = channel.read(target.pointer, 0, CHUNK)
    channel.write(second.pointer, 0, CHUNK)
    channel.wait(ticket)
    assert torch.equal(target.bytes, first.bytes)
    channel.drain()
    assert channel.copied().written_bytes == 2 * CHUNK


def test_closing_waits_for_what_is_under_way(disk: Path) -> None:
    channel = Channel(disk, CHUNK)
    source, target = Memory(CHUNK, 3), Memory(CHUNK)
    channel.disturb(delay_s=0.02)
    channel.write(source.pointer, 0, CHUNK)
    channel.read(target.pointer, 0, CHUNK)
    channel.close()
    channel.close()
    assert torch.equal(source.bytes, target.bytes)


def test_two_channels_in_one_folder_do_not_meet(disk: Path) -> None:
    one, other = Channel(disk, CHUNK), Channel(disk, CHUNK)
    sources, targets = [Memory(CHUNK, n) for n in range(2)], [Memory(CHUNK) for _ in range(2)]
    for channel, source in zip((one, other), sources, strict=True):
        channel.write(source.pointer, 0, CHUNK)
    for channel, target in zip((one, other), targets, strict=True):
        channel.wait(channel.read(target.pointer, 0, CHUNK))
        channel.close()
    assert all(torch.equal(s.bytes, t.bytes) for s, t in zip(sources, targets, strict=True))


def test_no_file_has_a_name(channel: Channel, disk: Path) -> None:
    assert not list(disk.iterdir())
    round_trip(channel, 100_000, 0, 0)
    assert not list(disk.iterdir())


def test_room_is_set_aside(disk: Path) -> None:
    channel = Channel(disk, 32 << 20)
    sizes = [os.stat(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is_unlinked_in(n, disk)]
    assert [s.st_size for s in sizes] == [32 << 20]
    assert sizes[0].st_blocks * 512 >= 32 << 20
    channel.close()
    assert not [n for n in os.listdir("/proc/self/fd") if _is_unlinked_in(n, disk)]


def _is_unlinked_in(descriptor: str, folder: Path) -> bool:
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # the listing's own
        return False
    return name.startswith(f"{folder.resolve()}/") and name.endswith("(deleted)")


@pytest.mark.parametrize(
    ("place", "size", "shift"),
    [(1, 10, 0), (ALIGNMENT, 1 << 20, 0), (-ALIGNMENT, 10, 0), (0, -1, 0), (0, (1 << 20) + 1, 0), (0, 10, 8)],
)
def test_copies_beside_the_file_or_the_alignment_are_refused(disk: Path, place: int, size: int, shift: int) -> None:
    channel = Channel(disk, 1 << 20)
    if shift and not channel.direct:
        pytest.skip("any memory will do where there is no direct I/O")
    memory = Memory(2 << 20, 0)
    for issue in (channel.write, channel.read):
        with pytest.raises(ExecutionError, match="Invalid argument"):
            issue(memory.pointer + shift, place, size)
    round_trip(channel, 1 << 20, 0, 1)


# Folders


def test_main_memory_is_no_disk() -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    with pytest.raises(ExecutionError, match=r"/dev/shm cannot hold a second memory of 4,096 bytes: .*main memory"):
        Channel(Path("/dev/shm"), 4096)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"nowhere cannot hold .*: No such file"):
        Channel(tmp_path / "nowhere", 4096)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExecutionError, match=r"file cannot hold .*: Not a directory"):
        Channel(tmp_path / "file", 4096)


def test_read_only_folder(disk: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is read-only to root")
    disk.chmod(0o500)
    try:
        with pytest.raises(ExecutionError, match="Permission denied"):
            Channel(disk, 4096)
    finally:
        disk.chmod(0o700)


def test_a_disk_that_is_too_small(disk: Path) -> None:
    free = os.statvfs(disk)
    with pytest.raises(ExecutionError, match=r"No space left|File too large"):
        Channel(disk, free.f_blocks * free.f_frsize + (1 << 40))
    assert not list(disk.iterdir())
    with pytest.raises(ExecutionError):
        Channel(disk, 1 << 62)


# Copies that fail


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_chunk_that_fails(channel: Channel, kind: str, chunk: int) -> None:
    size = 2 * CHUNK + 100
    source, target = Memory(size, 0), Memory(size)
    channel.wait(channel.write(source.pointer, 0, size))
    channel.disturb(failing_chunk=chunk, error=errno.EIO)
    issue = channel.write if kind == "write" else channel.read
    with pytest.raises(ExecutionError, match="Input/output error"):
        channel.wait(issue(target.pointer, 0, size))
    with pytest.raises(ExecutionError, match="failed: Input/output error"):
        channel.write(source.pointer, 0, size)  # until whoever uses it has seen that
    channel.drain()
    round_trip(channel, size, 0, 1)


def test_a_read_that_ends_early(channel: Channel) -> None:
    channel.disturb(failing_chunk=0, error=SHORT)
    with pytest.raises(ExecutionError, match="the file ended before what was to be read"):
        channel.wait(channel.read(Memory(4096).pointer, 0, 4096))


def test_a_file_that_was_cut(disk: Path) -> None:
    channel = Channel(disk, 1 << 20)
    (number,) = (n for n in os.listdir("/proc/self/fd") if _is_unlinked_in(n, disk))
    os.truncate(f"/proc/self/fd/{number}", 8192)
    channel.wait(channel.read(Memory(8192).pointer, 0, 8192))
    with pytest.raises(ExecutionError, match="the file ended before what was to be read"):
        channel.wait(channel.read(Memory(12_288).pointer, 0, 12_288))


def test_what_comes_after_a_failure_is_dropped(channel: Channel) -> None:
    """The copy that fails is not the last of the queue; no later one is executed, and each says so."""
    first, second, target = Memory(4096, 0), Memory(4096, 1), Memory(4096)
    channel.wait(channel.write(first.pointer, 0, 4096))
    before = channel.copied()
    channel.disturb(delay_s=0.05, failing_chunk=0, error=errno.EIO)
    ticket = channel.read(target.pointer, 0, 4096)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="Input/output error"):
            channel.wait(channel.write(second.pointer, 0, 4096))
    with pytest.raises(ExecutionError, match="Input/output error"):
        channel.wait(ticket)
    channel.drain()
    channel.disturb()
    assert (channel.copied().written_bytes, channel.copied().read_bytes) == (before.written_bytes, before.read_bytes)
    channel.wait(channel.read(target.pointer, 0, 4096))
    assert torch.equal(target.bytes, first.bytes)


# Processes

_BEGIN = """
import os, sys
from pathlib import Path
import torch
from monet.native.channel import Channel
memory = torch.ones((8 << 20) + 4096, dtype=torch.uint8)
pointer = -(-memory.data_ptr() // 4096) * 4096
channel = Channel(Path(sys.argv[1]), 8 << 20)
channel.disturb(delay_s=3600)
ticket = channel.write(pointer, 0, 8 << 20)
"""
_KILLED = _BEGIN + "print('copying', flush=True)\nchannel.wait(ticket)\n"
_INTERRUPTED = (
    _BEGIN
    + """
try:
    print("copying", flush=True)
    channel.wait(ticket)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os._exit(0)
"""
)


def _process(source: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(folder)],
        stdout=subprocess.PIPE, text=True, preexec_fn=default_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "copying\n"
    return process


def test_killed_in_the_middle_of_a_copy(disk: Path) -> None:
    process = _process(_KILLED, disk)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not list(disk.iterdir())


def test_interrupt_ends_a_wait(disk: Path) -> None:
    """The copy would take hours."""
    process = _process(_INTERRUPTED, disk)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out == "interrupted\n" and process.returncode == 0


def test_fork_while_copies_are_under_way(channel: Channel) -> None:
    """Copies are over before the fork; the child cannot copy, and its end changes nothing for the parent."""
    sources, targets = [Memory(CHUNK, n) for n in range(4)], [Memory(CHUNK) for _ in range(4)]
    channel.disturb(delay_s=0.02)
    for n, source in enumerate(sources):
        channel.write(source.pointer, n * CHUNK, CHUNK)
    tickets = [channel.read(target.pointer, n * CHUNK, CHUNK) for n, target in enumerate(targets)]
    child = os.fork()
    if child == 0:
        os._exit(_refused_in_child(channel, tickets[-1], targets[0].pointer))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for ticket in tickets:
        channel.wait(ticket)
    assert all(torch.equal(s.bytes, t.bytes) for s, t in zip(sources, targets, strict=True))
    round_trip(channel, CHUNK, 0, 9)


def _refused_in_child(channel: Channel, ticket: int, pointer: int) -> int:
    """0 where everything is refused, and nothing waits for a thread that is not there."""
    refused = 0
    for use in (
        lambda: channel.write(pointer, 0, 4096),
        lambda: channel.read(pointer, 0, 4096),
        lambda: channel.wait(ticket),
    ):
        try:
            use()
        except ExecutionError as error:
            refused += "belongs to the process that this one was forked from" in str(error)
    channel.drain()
    channel.copied()
    channel.close()
    own = Channel(channel.folder, 8192)  # a channel of its own works
    memory = Memory(8192, 5)
    own.wait(own.write(memory.pointer, 0, 8192))
    own.close()
    return 0 if refused == 3 else 1


def test_a_forked_childs_end_leaves_the_channel_alone(channel: Channel) -> None:
    children, memory = [], Memory(CHUNK, 1)
    for _ in range(3):
        channel.write(memory.pointer, 0, CHUNK)
        child = os.fork()
        if child == 0:
            channel.__del__()
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    round_trip(channel, 3 * CHUNK, 0, 2)
