"""Which versions of PyTorch monet is tested with. Beyond them it runs, and says so once."""

from __future__ import annotations

import logging
import re
from functools import cache

logger = logging.getLogger(__name__)

OLDEST, NEWEST = (2, 11), (2, 15)
"""Both are tested: ``make oldest``, ``make newest``."""


def untested(version: str) -> str | None:
    """Which versions monet is tested with and which one this is, where it is not among them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return None
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST, NEWEST))
    return f"{oldest} to {newest}, and this is torch {version}"


@cache
def say_if_untested() -> None:
    """Said by what first traces or runs a step, not by ``import monet``, which imports no torch."""
    import torch

    sentence = untested(torch.__version__)
    if sentence is not None:
        logger.warning("monet is tested with torch %s: what torch traces or runs may be other than planned", sentence)
