"""The smallest plan that was found for a step, kept on disk beside its measurements.

A refusal names a budget, and planning for that budget must then work. A search ends by the clock, so on a busier
machine the same search may find less. That is why the plan itself is kept, laid out: the budget is what it needs.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from monet.errors import CacheRefused
from monet.files.cache import open_table
from monet.files.frozen_json import Unreadable, decode, description, encode
from monet.pipeline.lowering import Lowered
from monet.pipeline.placement import Placement
from monet.planner.solution import Solution

logger = logging.getLogger(__name__)

Placed = tuple[Solution, Placement]

FORMAT = 1
"""Of what is kept. Two with the same fields that mean something else differ in it."""

_TABLE = "smallest_plan"  # a table "smallest" is an older monet's, who keeps pickles there


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is written for one problem."""

    format: int
    solution: Solution
    placement: Placement


def recall(lowered: Lowered, variant: str) -> Placed | None:
    """What ``remember`` was last given for the same problem, measurements and variant; None if nothing, or if it cannot
    be read, which is said."""
    try:
        with closing(_open()) as database:
            row = database.execute(f"SELECT plan FROM {_TABLE} WHERE key = ?", (_key(lowered, variant),)).fetchone()
        return None if row is None else _read(row[0])
    except (CacheRefused, OSError, sqlite3.Error, Unreadable) as error:
        logger.warning("the smallest plan of an earlier search cannot be read: %s", error)
        return None


def remember(lowered: Lowered, variant: str, placed: Placed) -> None:
    """Keep ``placed``, and say so if that fails."""
    try:
        entry = (_key(lowered, variant), encode(_Kept(FORMAT, *placed), _Kept))
        with closing(_open()) as database, database:
            database.execute(f"INSERT OR REPLACE INTO {_TABLE} VALUES (?, ?)", entry)
    except (CacheRefused, OSError, sqlite3.Error, TypeError) as error:  # TypeError: what is no plain number, say
        logger.warning("the smallest plan found cannot be kept for another search: %s", error)


def _open() -> sqlite3.Connection:
    return open_table(_TABLE, "plan TEXT")


def _read(text: object) -> Placed:
    """Raises ``Unreadable`` for anything but what ``remember`` writes."""
    if not isinstance(text, str):
        raise Unreadable("it is no text")
    kept = decode(text, _Kept)
    if kept.format != FORMAT:
        raise Unreadable(f"it has format {kept.format}, not {FORMAT}")
    return kept.solution, kept.placement


def _key(lowered: Lowered, variant: str) -> str:
    """Also of the format and of all fields: another version of monet may have others, and finds nothing then."""
    profile = lowered.profile
    measured = sorted(profile.measurements.items(), key=lambda item: item[0])  # the cache has another order
    parts = (variant, FORMAT, description(_Kept), lowered.problem, profile.environment, measured)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
