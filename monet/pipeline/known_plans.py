"""The plans that were found for a step, kept on disk beside its measurements: none that is slower *and* larger than
another.

A refusal names a budget, and planning for that budget must then work; and no plan may be slower than one that was
found for a smaller budget. A search ends by the clock, so on a busier machine the same search may find less. That is
why the plans themselves are kept, laid out: the budget is what a plan needs.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from monet.base.files.cache import cache_fails, open_table
from monet.base.files.frozen_json import Unreadable, decode, description, encode
from monet.errors import CacheRefused
from monet.pipeline.lowering import Lowered
from monet.pipeline.placement import Placement
from monet.planner.solution import Solution

logger = logging.getLogger(__name__)

Placed = tuple[Solution, Placement]

FORMAT = 1
"""Of what is kept. Two with the same fields that mean something else differ in it."""

MOST = 16
"""Plans of one problem that are kept."""

_TABLE = "known_plan"  # tables "smallest" and "smallest_plan" are older monets'


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is written for one problem."""

    format: int
    solution: Solution
    placement: Placement


def recall(lowered: Lowered, variant: str, budget_bytes: int | None = None) -> Placed | None:
    """The fastest plan known that fits ``budget_bytes``, of the same problem, measurements and variant.

    Without a budget, the smallest one. None if there is none, or if it cannot be read, which is said.
    """
    fits, order = ("", "bytes, seconds") if budget_bytes is None else ("AND bytes <= ?", "seconds, bytes")
    values = (_key(lowered, variant), *(() if budget_bytes is None else (budget_bytes,)))
    query = f"SELECT plan FROM {_TABLE} WHERE problem = ? {fits} ORDER BY {order} LIMIT 1"
    try:
        with closing(_open()) as database:
            row = database.execute(query, values).fetchone()
        return None if row is None else _read(row[0])
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
        return None
    except Unreadable as error:
        logger.warning("a plan of an earlier search cannot be read: %s", error)
        return None


def remember(lowered: Lowered, variant: str, placed: Placed) -> None:
    """Keep ``placed``, unless one is known that is neither slower nor larger; say so if that fails."""
    problem, solution = _key(lowered, variant), placed[0]
    size, seconds = lowered.problem.fixed_bytes + placed[1].layout.arena_bytes, solution.objective_s
    same = f"FROM {_TABLE} WHERE problem = ?"
    try:
        text = encode(_Kept(FORMAT, *placed), _Kept)
        with closing(_open()) as database, database:
            better = f"SELECT 1 {same} AND bytes <= ? AND seconds <= ? LIMIT 1"
            if database.execute(better, (problem, size, seconds)).fetchone() is not None:
                return
            database.execute(f"DELETE {same} AND bytes >= ? AND seconds >= ?", (problem, size, seconds))
            database.execute(
                f"INSERT OR REPLACE INTO {_TABLE} VALUES (?, ?, ?, ?, ?)",
                (f"{problem}:{size}", problem, size, seconds, text),
            )
            # The oldest goes, but never the smallest: a refusal may have named it.
            database.execute(
                f"DELETE FROM {_TABLE} WHERE rowid IN (SELECT rowid {same} AND bytes > (SELECT MIN(bytes) {same}) "
                f"ORDER BY rowid DESC LIMIT -1 OFFSET {MOST - 1})",
                (problem, problem),
            )
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
    except TypeError as error:  # of what is no plain number, say
        logger.warning("a plan cannot be kept for another search: %s", error)


def _open() -> sqlite3.Connection:
    return open_table(_TABLE, "problem TEXT NOT NULL, bytes INTEGER NOT NULL, seconds REAL NOT NULL, plan TEXT")


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
    carried = sorted(lowered.carried)
    parts = (variant, FORMAT, description(_Kept), lowered.problem, profile.environment, measured, carried)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
