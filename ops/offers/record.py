"""The record of an operator: what it offers, where its equations come from, and programs to try it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monet.base.graph import Operator
from monet.ops.offers import generic
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate
from monet.ops.offers.sample import Sample

Offers = Callable[[Operator, Context], list[Implementation]]
Target = Callable[..., Any]


def _none(op: Operator, context: Context) -> list[SavedIntermediate]:
    return []


@dataclass(frozen=True, slots=True)
class Record:
    """One operator as PyTorch's user knows it: the aten operators of its two passes and their implementations.

    ``family``: the heading in the table of operators. ``equations``: where they come from, or why there are no others.
    ``samples``: at least one for each form of the operator that has implementations of its own; every
    implementation that a sample's graph offers is tested.
    """

    name: str
    family: str
    forward_targets: tuple[Target, ...]
    backward_targets: tuple[Target, ...]
    equations: str
    samples: tuple[Sample, ...]
    forward: Offers = generic.forward
    recompute: Callable[[Operator, Context], list[Implementation] | None] = generic.recompute
    backward: Offers = generic.backward
    intermediates: Callable[[Operator, Context], list[SavedIntermediate]] = _none
