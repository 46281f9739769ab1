"""Measurements on disk."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from monet.base.files.cache import cache_fails, cache_folder, open_table, set_aside
from monet.base.files.frozen_json import Unreadable, decode, encode
from monet.base.measurement import Measurement

logger = logging.getLogger(__name__)

FORMAT = 3
"""Of a measurement and of its key. What was kept under another number is left where it is, and not read."""


class ProfileCache:
    """Measurements on disk by key, beside those of other formats. Safe for several processes. Where the disk does not
    do its part, that is said once, and nothing is read or kept any more. Raises ``CacheRefused`` as ``open_table``.

    What was measured while other programs kept the machine busy is kept apart, until a quiet measurement is there.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "profile.sqlite3"
        self._database: sqlite3.Connection | None = None
        self._open()

    def _open(self) -> None:
        try:
            self._database = open_table("measurement", "value TEXT", self.path)
        except (OSError, sqlite3.Error) as error:
            cache_fails(error)

    def get(self, key: str, *, busy: bool = False) -> Measurement | None:
        """What was last put there; None if nothing, or if it cannot be read, which is said. ``busy``: of a machine that
        was busy."""
        if self._database is None:
            return None
        query = "SELECT value FROM measurement WHERE key = ?"
        try:
            row = self._database.execute(query, (_in_format(key, busy),)).fetchone()
            return decode(row[0], Measurement) if row is not None else None
        except Unreadable as error:
            logger.warning("a measurement that was kept cannot be read, and is made again: %s", error)
        except sqlite3.Error as error:
            self._fails(error)
        return None

    def put(self, entries: Iterable[tuple[str, Measurement]], *, busy: bool = False) -> None:
        if self._database is None:
            return
        try:
            with self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO measurement VALUES (?, ?)",
                    [(_in_format(key, busy), encode(value, Measurement)) for key, value in entries],
                )
        except sqlite3.Error as error:
            self._fails(error)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _fails(self, error: Exception) -> None:
        self.close()
        self._database = None
        if set_aside(error, self.path):
            self._open()
        else:
            cache_fails(error)


def _in_format(key: str, busy: bool) -> str:
    return f"{'busy machine|' if busy else ''}format {FORMAT}|{key}"
