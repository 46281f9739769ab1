"""The smallest plan that was found for a step, kept on disk beside its measurements.

A refusal names a budget, and planning for that budget must then work. Searches end by the clock, so that on a busier
machine the same search may find less: the plan itself, laid out, is what is named.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import sqlite3
from contextlib import closing
from dataclasses import fields

from monet.files.cache import open_table
from monet.pipeline.lowering import Lowered
from monet.pipeline.placement import Placement
from monet.planner.solution import Solution

logger = logging.getLogger(__name__)

Placed = tuple[Solution, Placement]


def recall(lowered: Lowered, variant: str) -> Placed | None:
    """What ``remember`` was last given for the same problem, measurements and variant; None if nothing, or if it cannot
    be read."""
    try:
        with closing(_open()) as database:
            row = database.execute("SELECT plan FROM smallest WHERE key = ?", (_key(lowered, variant),)).fetchone()
        # The folder has compiled libraries of monet's too: who can write there needs no pickle to run code.
        found = None if row is None else pickle.loads(row[0])
    except Exception as error:  # unpickling raises anything
        logger.warning("the smallest plan of an earlier search cannot be read: %s", error)
        return None
    return found if found is None or _is_placed(found) else None


def remember(lowered: Lowered, variant: str, placed: Placed) -> None:
    """Keep ``placed``, and say so if that fails."""
    try:
        with closing(_open()) as database, database:
            entry = (_key(lowered, variant), pickle.dumps(placed))
            database.execute("INSERT OR REPLACE INTO smallest VALUES (?, ?)", entry)
    except (OSError, sqlite3.Error) as error:
        logger.warning("the smallest plan found cannot be kept for another search: %s", error)


def _open() -> sqlite3.Connection:
    return open_table("smallest", "plan BLOB")


def _key(lowered: Lowered, variant: str) -> str:
    """Also of the fields that are stored: another version of monet may have others."""
    layout = [[field.name for field in fields(kind)] for kind in (Solution, Placement)]
    profile = lowered.profile
    measured = sorted(profile.measurements.items(), key=lambda item: item[0])  # the cache has another order
    parts = (variant, layout, lowered.problem, profile.environment, measured)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _is_placed(found: object) -> bool:
    return (
        isinstance(found, tuple)
        and len(found) == 2
        and isinstance(found[0], Solution)
        and isinstance(found[1], Placement)
    )
