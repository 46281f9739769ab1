"""What operators are measured on where noise is no valid content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Fill = Callable[[torch.Tensor, Sequence[Any], Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Contents:
    """``argument``: of a call, its position or its name. ``fill(tensor, args, kwargs)`` gives it its content, with a
    ``Value`` for each argument that is a tensor."""

    argument: int | str
    fill: Fill


Operators = Mapping[Callable[..., Any], Contents]
"""What each operator or kernel is measured on."""
