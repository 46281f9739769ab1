"""The user's cache: the folder, and the database in it."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

import platformdirs


def open_table(name: str, content: str, path: Path | None = None) -> sqlite3.Connection:
    """The database of the cache, or at ``path``, with a table ``name`` of a key and a column ``content`` in it."""
    path = path or cache_folder() / "profile.sqlite3"
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, timeout=30)
    with database:
        database.execute(f"CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, {content} NOT NULL)")
    return database


logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where measured profiles and built libraries live; ``MONET_CACHE`` overrides it."""
    return Path(os.environ.get("MONET_CACHE") or platformdirs.user_cache_dir("monet"))
