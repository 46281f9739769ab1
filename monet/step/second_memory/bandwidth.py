"""How fast a second memory is: measured in both directions, alone and beside an operator, and kept.

``bandwidth`` is about a disk, ``host_bandwidth`` about main memory and a GPU.

What a plan is told is the slow end of what was seen: the tenth percentile of pieces of some seconds of copying, each
waited for. A disk that is slower than that in a step makes the step wait, which the executor counts.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from monet.base.files.cache import cache_fails, read_value, write_value
from monet.errors import CacheRefused
from monet.step.second_memory.folder import device_of
from monet.step.second_memory.streams import device_name
from monet.step.second_memory.trials import DiskTrial, HostTrial, Trial

logger = logging.getLogger(__name__)
SECONDS = 3.0
"""Of copying, each way: sustained, as cloud disks are fast for a moment."""
LOW = 0.1
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
    return _known(key, lambda: measure(folder), cache=cache)


def host_bandwidth(device: torch.device, *, cache: bool = True) -> Bandwidth:
    """Of copies between a GPU and pinned main memory, from an earlier run or measured now, in some seconds.

    Raises ``ExecutionError`` where no memory can be pinned.
    """
    return _known(f"{_FORMAT} host {device_name(device)}", lambda: _measured(HostTrial(device)), cache=cache)


def _known(key: str, measure: Callable[[], Bandwidth], *, cache: bool) -> Bandwidth:
    known = _recall(key) if cache else None
    if known is not None:
        return known
    found = measure()
    if cache:
        _remember(key, found)
    return found


def measure(folder: Path) -> Bandwidth:
    """Writes and reads a file of some hundred megabytes for some seconds each way."""
    return _measured(DiskTrial(folder))


def _measured(trial: Trial) -> Bandwidth:
    try:
        write = _low(_rates(trial, write=True))
        read = _low(_rates(trial, write=False))
        slowdown_s = _slowdown(trial)
    finally:
        trial.close()
    return Bandwidth(write, read, slowdown_s, datetime.now(UTC).isoformat(timespec="seconds"))


def _rates(trial: Trial, *, write: bool) -> list[float]:
    """Bytes a second of one piece after the other. Two are under way at any time, as in a step."""
    rates, began = [], time.perf_counter()
    pending = trial.issue(0, write=write)
    last, n = began, 1
    while time.perf_counter() - began < SECONDS:
        following = trial.issue(n, write=write)
        trial.wait(pending)
        now = time.perf_counter()
        rates.append(trial.piece / (now - last))
        pending, last, n = following, now, n + 1
    trial.wait(pending)
    return rates


def _low(rates: list[float]) -> float:
    return sorted(rates)[int(LOW * len(rates))]


def _slowdown(trial: Trial) -> float:
    """Seconds that a matrix product takes longer, for each byte that is copied beside it; products alone and with a
    copy alternate."""

    def product() -> float:
        began = time.perf_counter()
        trial.product()
        return time.perf_counter() - began

    product()
    lost_s, copied = 0.0, 0
    for n in range(12):
        alone = min(product(), product())
        ticket = trial.issue(0, write=n % 2 == 0)
        before = trial.copied_bytes()
        beside, count = 0.0, 0
        began = time.perf_counter()
        while count < 2 or time.perf_counter() - began < trial.piece / 4e9:
            beside += product()
            count += 1
        trial.wait(ticket)
        lost_s += max(0.0, beside - count * alone)
        copied += trial.copied_bytes() - before
    return lost_s / copied if copied else 0.0


def _recall(key: str) -> Bandwidth | None:
    try:
        text = read_value(_TABLE, key)
        return None if text is None else Bandwidth(**json.loads(text))
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
        return None
    except (ValueError, TypeError) as error:
        logger.warning("what was measured of a disk cannot be read, and is measured again: %s", error)
        return None


def _remember(key: str, found: Bandwidth) -> None:
    try:
        write_value(_TABLE, key, json.dumps(asdict(found)))
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
