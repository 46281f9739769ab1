"""Random numbers of Python and NumPy, by which a model may decide what it does: the same in each trace."""

from __future__ import annotations

import random
import sys
from typing import Any

DRAWS = (
    "the forward pass draws random numbers of Python or NumPy{whose}, which a plan would repeat at each step; draw "
    "them with torch, or outside of the model and pass them in"
)
"""``whose``: of which generator, where that is not a global one."""


def random_state() -> tuple[Any, Any]:
    """Of Python and NumPy, by which a model may decide what it does: the same each time that it is traced."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def set_random_state(state: tuple[Any, Any]) -> None:
    """Set what ``random_state`` returned."""
    of_python, of_numpy = state
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


def same_random_state(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Of two that ``random_state`` returned."""
    if one[0] != other[0]:
        return False
    a, b = one[1], other[1]
    return a is None or b is None or (bool((a[1] == b[1]).all()) and a[2:] == b[2:])
