"""Which versions of PyTorch monet is tested with. Beyond them it runs, and says so once."""

from __future__ import annotations

import logging
import re
from functools import cache

logger = logging.getLogger(__name__)

OLDEST, NEWEST = (2, 11), (2, 15)
"""Both are tested: ``make oldest``, ``make newest``."""


def untested(version: str) -> str | None:
    """A sentence where this version of PyTorch is not among those that monet is tested with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
    return (
        f"monet is tested with torch {oldest} to {newest}, and this is torch {version}: what torch traces or runs may "
        "be other than planned"
    )


@cache
def say_if_untested() -> None:
    """Said by what first traces or runs a step, not by ``import monet``, which imports no torch."""
    import torch

    sentence = untested(torch.__version__)
    if sentence is not None:
        logger.warning("%s", sentence)
