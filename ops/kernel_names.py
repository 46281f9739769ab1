"""The name of what an implementation calls: part of the key under which it is measured.

A kernel of the project has a name of its own, given where it is defined. The name stays when its function is renamed
or its file moves, so what was measured before is found again; and two kernels never share one, as functions of two
files can. Operators and functions of torch keep torch's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_names: dict[Callable[..., Any], str] = {}


def kernel(name: str) -> Callable[[_Kernel], _Kernel]:
    """Gives the function below it a name of its own. A kernel that computes something else, or in another way, than
    before gets another name, or the format of measurements (``measuring.cache``) a new number.

    Raises ``ValueError`` for a name that is taken, and for one that is no identifier: torch's have dots
    (``aten.add.Tensor``), so that no kernel's is one of them.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot be a kernel's name: letters, digits and _ only")
    if name in _names.values():
        raise ValueError(f"two kernels are called {name}")

    def named(function: _Kernel) -> _Kernel:
        _names[function] = name
        return function

    return named


def call_name(call: Callable[..., Any]) -> str:
    """Stable across processes, and the same wherever monet's files lie.

    Raises ``ValueError`` for a function of monet's that has no name: its place would be all that is left to tell it by.
    """
    name = getattr(call, "__qualname__", None)
    if not name or hasattr(call, "_schema"):
        return str(call)
    if call in _names:
        return _names[call]
    if call.__module__.partition(".")[0] == "monet":
        raise ValueError(f"{call.__module__}.{name} is measured, and has no name: decorate it with kernel(...)")
    return f"{call.__module__}.{name}"
