"""Operators that raise an error by the values they are given, as those of torch.linalg do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._higher_order_ops.effects import _EffectType, _get_effect, _register_effectful_op

_CHECK = torch.ops.aten._linalg_check_errors.default


@contextmanager
def keeping_value_checks() -> Iterator[None]:
    """A context in which a trace keeps the check of such an operator, as an effect, so that it is seen and refused.

    torch 2.11 does not know it for one, and drops it: where eager raises, a step would go on.
    """
    if _get_effect(_CHECK) is not None:
        yield
        return
    handle = _register_effectful_op(_CHECK, _EffectType.ORDERED)
    try:
        yield
    finally:
        handle.destroy()
