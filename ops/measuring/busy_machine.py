"""Whether other programs are at work: what is measured beside them takes longer than it will later."""

from __future__ import annotations

import time
from pathlib import Path

PERIOD_S = 0.2
"""How long to look before anything is measured."""
WINDOW_S = 1.0
"""How long to measure between two looks: the kernel counts in hundredths of a second."""
SPARE = 0.5
"""Cores that others always keep busy: no reason to mark anything."""


class OtherPrograms:
    """Looks at the kernel's counters again and again, and tells whether others kept cores from ``threads`` threads of
    this process since the look before.

    ``busy``: how many cores they kept busy on average over the last look that found too many; 0 before there is one.
    """

    def __init__(self, threads: int, stat: Path = Path("/proc/stat")) -> None:
        self._threads = threads
        self._stat = stat
        self._before = _ticks(stat)
        self._own_s = time.process_time()
        self._at = time.perf_counter()
        self._took = False
        self.busy = 0.0

    @property
    def window_s(self) -> float:
        """Seconds since the last look."""
        return time.perf_counter() - self._at

    def took_cores(self) -> bool:
        """Whether others did since the last look; False where the system does not tell. What was too short to be
        counted is as it was before."""
        if 0 < self.window_s < PERIOD_S:
            return self._took
        ticks, own_s, now = _ticks(self._stat), time.process_time(), time.perf_counter()
        before, own, passed = self._before, own_s - self._own_s, now - self._at
        self._before, self._own_s, self._at = ticks, own_s, now
        self._took = False
        if ticks is None or before is None or len(ticks) != len(before) or passed <= 0:
            return False
        used = 0.0
        for (idle, total), (idle_then, total_then) in zip(before, ticks, strict=True):
            if total_then > total:
                used += 1 - (idle_then - idle) / (total_then - total)
        others = used - own / passed
        self._took = len(ticks) - others < min(self._threads, len(ticks)) - SPARE
        if self._took:
            self.busy = others
        return self._took


def _ticks(stat: Path) -> list[tuple[int, int]] | None:
    """(idle, all) of every core."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return None
    cores = [line.split()[1:] for line in lines if line.startswith("cpu") and not line.startswith("cpu ")]
    # idle and iowait are the fourth and fifth; guest times, from the ninth on, are in user time already.
    return [(int(n[3]) + int(n[4]), sum(map(int, n[:8]))) for n in cores]
