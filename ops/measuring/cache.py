"""Measurements on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from monet.files.cache import cache_folder, open_table
from monet.measurement import Measurement, Request

FORMAT = 3
"""Of a measurement and of its key. What was kept under another number is left where it is, and not read."""


class ProfileCache:
    """Measurements on disk by key, beside those of other formats. Safe for several processes."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "profile.sqlite3"
        self._database = open_table("measurement", "value TEXT", self.path)

    def get(self, key: str) -> Measurement | None:
        row = self._database.execute("SELECT value FROM measurement WHERE key = ?", (_in_format(key),)).fetchone()
        return _decode(row[0]) if row is not None else None

    def put(self, entries: Iterable[tuple[str, Measurement]]) -> None:
        with self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO measurement VALUES (?, ?)",
                [(_in_format(key), _encode(value)) for key, value in entries],
            )

    def close(self) -> None:
        self._database.close()


def _in_format(key: str) -> str:
    return f"format {FORMAT}|{key}"


def _encode(measurement: Measurement) -> str:
    return json.dumps(asdict(measurement))


def _decode(text: str) -> Measurement:
    raw = json.loads(text)
    return Measurement(raw["time_s"], tuple(Request(**request) for request in raw["requests"]), raw["ticks"])
