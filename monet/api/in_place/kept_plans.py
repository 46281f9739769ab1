"""Plans on disk, by what they were asked for: the second start of the same training plans nothing.

A file each in the folder ``plans`` of the user's cache. What is read is verified as any plan file is.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from monet.base.code_version import code_version
from monet.base.files.cache import cache_fails, cache_folder, private_folder
from monet.errors import CacheRefused, InvalidPlan
from monet.ops import registry
from monet.plans.format import VERSION
from monet.plans.plan import Plan

logger = logging.getLogger(__name__)

MOST = 64
"""Plans that are kept; the oldest goes."""


def key_of(*parts: object) -> str:
    """The key of a plan that depends on ``parts``, by their ``repr``, and on the code of all implementations: what
    another version of it requests may differ."""
    operators = code_version(Path(registry.__file__).parent)
    return hashlib.sha256(repr((VERSION, operators, *parts)).encode()).hexdigest()


def recall(key: str) -> Plan | None:
    """The plan that was kept under ``key``, read anew. None if there is none, or if it cannot be read, which is
    said."""
    try:
        path = _path(key)
        return Plan.load(path) if path.exists() else None
    except (CacheRefused, OSError) as error:
        cache_fails(error)
        return None
    except InvalidPlan as error:
        logger.warning("a plan that was kept cannot be read, and is made again: %s", error)
        return None


def keep(key: str, plan: Plan) -> None:
    """Keep ``plan`` under ``key``; say so if that fails."""
    try:
        path = _path(key)
        plan.save(path)
        kept = sorted(path.parent.glob("*.plan.json"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-MOST]:
            old.unlink(missing_ok=True)
    except (CacheRefused, OSError) as error:
        cache_fails(error)
    except InvalidPlan as error:
        logger.warning("the plan is not kept: %s", error)


def forget(key: str) -> None:
    """Have no plan under ``key`` any more; say so if that fails."""
    try:
        _path(key).unlink(missing_ok=True)
    except (CacheRefused, OSError) as error:
        logger.warning("a plan that is kept cannot be removed: %s", error)


def _path(key: str) -> Path:
    return private_folder(private_folder(cache_folder()) / "plans") / f"{key}.plan.json"
