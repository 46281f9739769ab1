"""Strides of contiguous and channels-last tensors."""

from __future__ import annotations

from collections.abc import Sequence


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return in_order(shape, range(len(shape)))


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor (N, C, ...) with its channels next to each other."""
    return in_order(shape, (0, *range(2, len(shape)), 1))


def in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor whose dimensions lie in memory in this order, the last one's elements side by side."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)
