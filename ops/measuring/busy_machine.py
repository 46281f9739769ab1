"""Whether other programs are at work: what is measured beside them takes longer than it will later."""

from __future__ import annotations

import logging
import time
from pathlib import Path

logger = logging.getLogger(__name__)

PERIOD_S = 0.2
SPARE = 0.5
"""Cores that others always keep busy: no reason for a warning."""


def busy_cores(stat: Path = Path("/proc/stat"), period_s: float = PERIOD_S) -> tuple[float, int] | None:
    """(cores that were busy while this thread slept for ``period_s``, cores of the machine); None where the system
    does not tell. Counts in the kernel's ticks of a hundredth of a second."""
    before = _ticks(stat)
    time.sleep(period_s)
    after = _ticks(stat)
    if before is None or after is None or len(before) != len(after):
        return None
    busy = 0.0
    for (idle, total), (idle_then, total_then) in zip(before, after, strict=True):
        if total_then > total:
            busy += 1 - (idle_then - idle) / (total_then - total)
    return busy, len(after)


def warn_if_busy(threads: int, kept_in: Path | None) -> None:
    """Logs a warning where fewer than ``threads`` cores are free; ``kept_in``: the file that will hold the times."""
    found = busy_cores()
    if found is None:
        return
    busy, cores = found
    if cores - busy < min(threads, cores) - SPARE:
        logger.warning(
            "other programs keep %.1f of %d cores busy: times measured now are too long, those of small operators by "
            "far%s",
            busy,
            cores,
            f"; {kept_in} keeps them: delete it to measure again" if kept_in is not None else "",
        )


def _ticks(stat: Path) -> list[tuple[int, int]] | None:
    """(idle, all) of every core."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    cores = [line.split()[1:] for line in lines if line.startswith("cpu") and not line.startswith("cpu ")]
    # idle and iowait are the fourth and fifth; guest times, from the ninth on, are in user time already.
    return [(int(n[3]) + int(n[4]), sum(map(int, n[:8]))) for n in cores]
