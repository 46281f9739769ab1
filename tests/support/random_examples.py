"""How many random examples a property is tried on."""

from __future__ import annotations

import os


def examples(count: int) -> int:
    """``count`` in ``make slow``, which tries all of them, and a third in ``make test``."""
    return count if os.environ.get("MONET_EXAMPLES") == "all" else max(5, count // 3)
