"""Conditions on values that a model's code decides by, as ``if not torch.isfinite(x).all():``.

Tracing has no values. What most such conditions look for is what seldom happens: something is not finite, is padding,
is out of bounds. So ``all`` is taken to be true and ``any`` to be false, and a number that is compared in an assertion
to be as asserted. The trace is of the path where they are, and each is a further output, which every planned call
compares. Other conditions on values stay refused.
"""

from __future__ import annotations

import linecache
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What ``torch.distributions`` asks of its parameters is among them.
_EXPECTED: dict[Any, bool] = {
    **dict.fromkeys((torch.all, torch.Tensor.all, torch._is_all_true, torch.Tensor._is_all_true), True),
    **dict.fromkeys((torch.any, torch.Tensor.any, torch._is_any_true, torch.Tensor._is_any_true), False),
}
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))

Note = Callable[[torch.Tensor, bool, str], None]
"""Is told of a condition: its tensor, the value that is expected, and the line of code."""


class Conditions(TorchFunctionMode):
    """A context in which such conditions have the values that are expected; ``note`` is told of each that is asked."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note
        self._results: dict[int, tuple[torch.Tensor, bool]] = {}  # the tensor keeps its identity its own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asks = func in (torch.Tensor.__bool__, torch.Tensor.item)
        if asks and id(args[0]) in self._results:
            tensor, expected = self._results[id(args[0])]
            self._note(tensor, expected, line_of(sys._getframe(1))[0])
            return expected
        if func is torch.Tensor.item:
            place, code = line_of(sys._getframe(1))
            if code.startswith("assert "):
                return _Asserted(args[0], place, self._note)
        result = func(*args, **(kwargs or {}))
        if func in _EXPECTED and isinstance(result, torch.Tensor) and result.numel() == 1:
            self._results[id(result)] = result, _EXPECTED[func]
        return result


def _asserting(compare: Callable[[Any, Any], Any]) -> Callable[[_Asserted, Any], bool]:
    def holds(number: _Asserted, other: Any = 0) -> bool:
        number.note(compare(number.tensor, other), True, number.place)
        return True

    return holds


@dataclass(frozen=True, eq=False)
class _Asserted:
    """A number of a tensor, of which code asserts something."""

    tensor: torch.Tensor
    place: str
    note: Note

    __lt__, __le__ = _asserting(operator.lt), _asserting(operator.le)
    __gt__, __ge__ = _asserting(operator.gt), _asserting(operator.ge)
    __eq__, __ne__ = _asserting(operator.eq), _asserting(operator.ne)
    __bool__ = _asserting(operator.ne)
    __hash__ = None  # type: ignore[assignment]


def line_of(frame: FrameType | None) -> tuple[str, str]:
    """The line of the user's code that is running, with its place, and the code alone."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    if frame is None:
        return "a condition", ""
    name = frame.f_code.co_filename
    code = linecache.getline(name, frame.f_lineno).strip()
    return f"{name}:{frame.f_lineno}: {code}", code
