"""Measured costs of operator implementations, and their cache on disk.

A measurement belongs to a signature: implementation, arguments with shapes, strides and dtypes,
device, thread count, torch version. Requests are a function of the signature alone, so one run
tells them all; seconds are the median of a few runs served from memory that is already resident.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from monet.compiling import cache_folder


@dataclass(frozen=True, slots=True)
class Request:
    """``bytes`` asked from the allocator during ticks [begin, end) of the operator.

    ``end`` None: still held when the operator returns. ``output``: position of the result that lives in it.
    ``workers``: nothing that is asked for in this place, but what the other threads of the operator's parallel loops
    ask for in no order; they share it evenly. There is one such request at most, and it is the last.
    """

    bytes: int
    begin: int
    end: int | None
    output: int | None
    workers: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """``time_s``: median seconds. ``ticks``: how many events the requests are spread over, at least 1."""

    time_s: float
    requests: tuple[Request, ...]
    ticks: int

    def workspace_bytes(self) -> int:
        """Peak bytes while it runs, beyond its outputs."""
        outputs = sum(request.bytes for request in self.requests if request.output is not None)
        peak = 0
        for tick in range(self.ticks):
            alive = sum(r.bytes for r in self.requests if r.begin <= tick and (r.end is None or tick < r.end))
            peak = max(peak, alive)
        return max(0, peak - outputs)


class ProfileCache:
    """Measurements on disk by key. Safe for several processes; a broken file is set aside and said."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "profile.sqlite3"
        self._database = open_table("measurement", "value TEXT", self.path)

    def get(self, key: str) -> Measurement | None:
        row = self._database.execute("SELECT value FROM measurement WHERE key = ?", (key,)).fetchone()
        return _decode(row[0]) if row is not None else None

    def put(self, entries: Iterable[tuple[str, Measurement]]) -> None:
        with self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO measurement VALUES (?, ?)", [(key, _encode(value)) for key, value in entries]
            )

    def close(self) -> None:
        self._database.close()


def open_table(name: str, content: str, path: Path | None = None) -> sqlite3.Connection:
    """The database of the cache, or at ``path``, with a table ``name`` of a key and a column ``content`` in it."""
    path = path or cache_folder() / "profile.sqlite3"
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=30)
    with database:
        database.execute(f"CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, {content} NOT NULL)")
    return database


def _encode(measurement: Measurement) -> str:
    return json.dumps(asdict(measurement))


def _decode(text: str) -> Measurement:
    raw = json.loads(text)
    return Measurement(raw["time_s"], tuple(Request(**request) for request in raw["requests"]), raw["ticks"])
