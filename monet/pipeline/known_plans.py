"""The plans that were found for a step, kept on disk beside its measurements: none that is slower *and* larger than
another.

A refusal names a budget, and planning for that budget must then work; and no plan may be slower than one that was
found for a smaller budget. A search ends by the clock, so on a busier machine the same search may find less. That is
why the plans themselves are kept, laid out: the budget is what a plan needs.

Beside them are the answers of searches that came within the gap that was asked for: asked the same again, a search
would only prove it again.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import monet.planner
from monet.base.code_version import code_version
from monet.base.files.cache import cache_fails, open_table
from monet.base.files.frozen_json import Unreadable, decode, description, encode
from monet.errors import CacheRefused
from monet.pipeline.lowering import Lowered
from monet.pipeline.placement import Placement
from monet.planner.search import Solving
from monet.planner.solution import Solution

logger = logging.getLogger(__name__)

Placed = tuple[Solution, Placement]

FORMAT = 1
"""Of what is kept. Two with the same fields that mean something else differ in it."""

MOST = 16
"""Plans of one problem that are kept, and answers."""

_SEARCHING = (Path(__file__).parent, *map(Path, monet.planner.__path__))
"""The code that an answer is of."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Of the cache's database: its columns beside the key."""

    name: str
    columns: str

    def open(self) -> sqlite3.Connection:
        return open_table(self.name, self.columns)


# Tables "smallest" and "smallest_plan" are older monets'.
_PLANS = _Table("known_plan", "problem TEXT NOT NULL, bytes INTEGER NOT NULL, seconds REAL NOT NULL, plan TEXT")
_ANSWERS = _Table("search_answer", "problem TEXT NOT NULL, plan TEXT")


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
    return _first(_PLANS, f"problem = ? {fits} ORDER BY {order}", values)


def remember(lowered: Lowered, variant: str, placed: Placed) -> None:
    """Keep ``placed``, unless one is known that is neither slower nor larger; say so if that fails."""
    problem, solution = _key(lowered, variant), placed[0]
    size, seconds = lowered.problem.fixed_bytes + placed[1].layout.arena_bytes, solution.objective_s
    same = f"FROM {_PLANS.name} WHERE problem = ?"

    def keep(database: sqlite3.Connection, text: str) -> None:
        better = f"SELECT 1 {same} AND bytes <= ? AND seconds <= ? LIMIT 1"
        if database.execute(better, (problem, size, seconds)).fetchone() is not None:
            return
        database.execute(f"DELETE {same} AND bytes >= ? AND seconds >= ?", (problem, size, seconds))
        database.execute(
            f"INSERT OR REPLACE INTO {_PLANS.name} VALUES (?, ?, ?, ?, ?)",
            (f"{problem}:{size}", problem, size, seconds, text),
        )
        # The oldest goes, but never the smallest: a refusal may have named it.
        database.execute(
            f"DELETE FROM {_PLANS.name} WHERE rowid IN (SELECT rowid {same} AND bytes > (SELECT MIN(bytes) {same}) "
            f"ORDER BY rowid DESC LIMIT -1 OFFSET {MOST - 1})",
            (problem, problem),
        )

    _write(_PLANS, placed, keep)


def recall_answer(lowered: Lowered, variant: str, budget_bytes: int, solving: Solving) -> Placed | None:
    """What ``remember_answer`` kept of a search that the same code was asked; None as ``recall``."""
    return _first(_ANSWERS, "key = ?", (_asked(_key(lowered, variant), budget_bytes, solving),))


def remember_answer(lowered: Lowered, variant: str, budget_bytes: int, solving: Solving, placed: Placed) -> None:
    """Keep ``placed``, which is within ``solving.gap`` of what was proven; say so if that fails."""
    problem = _key(lowered, variant)

    def keep(database: sqlite3.Connection, text: str) -> None:
        key = _asked(problem, budget_bytes, solving)
        database.execute(f"INSERT OR REPLACE INTO {_ANSWERS.name} VALUES (?, ?, ?)", (key, problem, text))
        database.execute(
            f"DELETE FROM {_ANSWERS.name} WHERE rowid IN (SELECT rowid FROM {_ANSWERS.name} WHERE problem = ? "
            f"ORDER BY rowid DESC LIMIT -1 OFFSET {MOST})",
            (problem,),
        )

    _write(_ANSWERS, placed, keep)


def _asked(problem: str, budget_bytes: int, solving: Solving) -> str:
    """All that an answer depends on, but the time that the search had."""
    settings = replace(solving, time_limit_s=0.0)
    return f"{problem}:{code_version(*_SEARCHING)}:{budget_bytes}:{settings}"


def _first(table: _Table, where: str, values: tuple[object, ...]) -> Placed | None:
    query = f"SELECT plan FROM {table.name} WHERE {where} LIMIT 1"
    try:
        with closing(table.open()) as database:
            row = database.execute(query, values).fetchone()
        return None if row is None else _read(row[0])
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
        return None
    except Unreadable as error:
        logger.warning("a plan of an earlier search cannot be read: %s", error)
        return None


def _write(table: _Table, placed: Placed, keep: Callable[[sqlite3.Connection, str], None]) -> None:
    """``keep`` is given the database and the text of ``placed``."""
    try:
        text = encode(_Kept(FORMAT, *placed), _Kept)
        with closing(table.open()) as database, database:
            keep(database, text)
    except (CacheRefused, OSError, sqlite3.Error) as error:
        cache_fails(error)
    except TypeError as error:  # of what is no plain number, say
        logger.warning("a plan cannot be kept for another search: %s", error)


def _read(text: object) -> Placed:
    """Raises ``Unreadable`` for anything but what ``_write`` does."""
    if not isinstance(text, str):
        raise Unreadable("it is no text")
    kept = decode(text, _Kept)
    if kept.format != FORMAT:
        raise Unreadable(f"it has format {kept.format}, not {FORMAT}")
    return kept.solution, kept.placement


def _key(lowered: Lowered, variant: str) -> str:
    """Also of the format and of all fields: another version of monet may have others, and finds nothing then."""
    parts = (variant, FORMAT, description(_Kept), lowered.digest)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
