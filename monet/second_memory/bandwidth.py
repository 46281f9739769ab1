"""How fast a second memory is: measured in both directions, alone and beside an operator, and kept.

What a plan is told is the slow end of what was seen: the tenth percentile of pieces of some seconds of copying, each
waited for. A disk that is slower than that in a step makes the step wait, which the executor counts.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from monet.errors import CacheRefused
from monet.files.cache import read_value, write_value
from monet.native.channel import ALIGNMENT, Channel
from monet.plans.plan import whole_blocks
from monet.second_memory.folder import device_of

logger = logging.getLogger(__name__)
PIECE = 64 << 20
PIECES = 8
SECONDS = 3.0
"""Of copying, each way: sustained, as cloud disks are fast for a moment."""
LOW = 0.1
BESIDE = 1024
"""Rows and columns of the product beside which copies are measured."""
_TABLE, _FORMAT = "bandwidth", 1


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second each way, and by how much operators take longer for each byte that is copied beside them.

    ``measured``: when, as ISO 8601 tells it.
    """

    write_rate: float
    read_rate: float
    slowdown_s: float
    measured: str


def bandwidth(folder: Path, *, cache: bool = True) -> Bandwidth:
    """Of the disk that ``folder`` lies on, from an earlier run or measured now, in some seconds.

    Raises ``ExecutionError`` where the folder cannot be used.
    """
    key = f"{_FORMAT} {device_of(folder)} {torch.get_num_threads()} threads"
    known = _recall(key) if cache else None
    if known is not None:
        return known
    found = measure(folder)
    if cache:
        _remember(key, found)
    return found


def measure(folder: Path) -> Bandwidth:
    """Writes and reads a file of some hundred megabytes for some seconds each way."""
    channel = Channel(folder, PIECES * PIECE)
    try:
        memory = torch.empty(PIECE + ALIGNMENT, dtype=torch.uint8).random_()
        pointer = whole_blocks(memory.data_ptr())
        for place in range(PIECES):  # the first write to a place also makes it
            channel.wait(channel.write(pointer, place * PIECE, PIECE))
        write = _low(_rates(channel, pointer, write=True))
        read = _low(_rates(channel, pointer, write=False))
        slowdown_s = _slowdown(channel, pointer)
    finally:
        channel.close()
    return Bandwidth(write, read, slowdown_s, datetime.now(UTC).isoformat(timespec="seconds"))


def _rates(channel: Channel, pointer: int, *, write: bool) -> list[float]:
    """Bytes a second of one piece after the other. Two are under way at any time, as in a step."""
    issue = channel.write if write else channel.read
    rates, began = [], time.perf_counter()
    pending = issue(pointer, 0, PIECE)
    last, n = began, 1
    while time.perf_counter() - began < SECONDS:
        following = issue(pointer, n % PIECES * PIECE, PIECE)
        channel.wait(pending)
        now = time.perf_counter()
        rates.append(PIECE / (now - last))
        pending, last, n = following, now, n + 1
    channel.wait(pending)
    return rates


def _low(rates: list[float]) -> float:
    return sorted(rates)[int(LOW * len(rates))]


def _slowdown(channel: Channel, pointer: int) -> float:
    """Seconds that a matrix product takes longer, for each byte that is copied beside it; products alone and with a
    copy alternate."""
    one = torch.rand(BESIDE, BESIDE)

    def product() -> float:
        began = time.perf_counter()
        torch.mm(one, one)
        return time.perf_counter() - began

    product()
    lost_s, copied = 0.0, 0
    for n in range(12):
        alone = min(product(), product())
        ticket = channel.write(pointer, 0, PIECE) if n % 2 == 0 else channel.read(pointer, 0, PIECE)
        before = channel.copied()
        beside, count = 0.0, 0
        began = time.perf_counter()
        while count < 2 or time.perf_counter() - began < PIECE / 4e9:
            beside += product()
            count += 1
        channel.wait(ticket)
        after = channel.copied()
        lost_s += max(0.0, beside - count * alone)
        copied += after.written_bytes + after.read_bytes - before.written_bytes - before.read_bytes
    return lost_s / copied if copied else 0.0


def _recall(key: str) -> Bandwidth | None:
    try:
        text = read_value(_TABLE, key)
        return None if text is None else Bandwidth(**json.loads(text))
    except (CacheRefused, OSError, sqlite3.Error, ValueError, TypeError) as error:
        logger.warning("what was measured of a disk cannot be read: %s", error)
        return None


def _remember(key: str, found: Bandwidth) -> None:
    try:
        write_value(_TABLE, key, json.dumps(asdict(found)))
    except (CacheRefused, OSError, sqlite3.Error) as error:
        logger.warning("what was measured of a disk cannot be kept: %s", error)
