"""What a call of a planned module must look like."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.base.graph import INPUT, TOTAL, Source, Value, written_sources
from monet.capture import Captured
from monet.capture.plain_tensors import PLAIN, is_plain, why_not_plain
from monet.errors import PlanMismatch
from monet.executor.varying import CallShape, Shape

logger = logging.getLogger(__name__)


class _Leaf:
    """Any input, in a message."""

    def __repr__(self) -> str:
        return "_"


_LEAF = _Leaf()


def _structure(spec: pytree.TreeSpec) -> str:
    """The inputs as a call has them: ``(_, [_, _], mask=_)``."""
    args, kwargs = pytree.tree_unflatten([_LEAF] * spec.num_leaves, spec)
    return f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"


def _at_a_glance(sources: Sequence[tuple[int, Source, Value]]) -> tuple[list[Any], ...]:
    """Of all sources one property after the other: shapes, strides, dtypes, whether they require gradients, devices."""
    values = [value for _, _, value in sources]
    return (
        [value.shape for value in values],
        [value.stride for value in values],
        [value.dtype for value in values],
        [source.requires_grad for _, source, _ in sources],
        [value.device for value in values],
    )


class InputCheck:
    """Compares each call with the captured one."""

    def __init__(self, captured: Captured, calls: CallShape | None) -> None:
        """``calls``: what a call's shape makes of the captured values, where sizes vary."""
        self._captured = captured
        self._sources = [
            (position, source, captured.graph.values[source.value])
            for position, source in enumerate(captured.graph.sources)
            if source.kind != TOTAL
        ]
        self._written = written_sources(captured.graph)
        self._shape: Shape | None = None
        self._calls = calls
        self._expected = _at_a_glance(self._sources)
        leaves, spec = captured.in_spec.num_leaves, captured.in_spec
        plain = not captured.literals and spec == pytree.tree_structure(((0,) * leaves, {}))
        self._plain_args = leaves if plain else None  # that many tensors and nothing else
        self._warned = False

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flattened inputs. Raises ``PlanMismatch`` where their structure or a literal differs."""
        if not kwargs and len(args) == self._plain_args and all(type(leaf) in PLAIN for leaf in args):
            return list(args)
        if kwargs:
            order = self._captured.in_spec.child(1).context if len(kwargs) > 1 else None
            if order is not None and set(order) == set(kwargs):
                kwargs = {name: kwargs[name] for name in order}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._captured.in_spec:
            raise PlanMismatch(
                f"the model was planned for inputs {_structure(self._captured.in_spec)} and is called with "
                f"{_structure(spec)}; call it as planned, or plan again"
            )
        for position, literal in self._captured.literals.items():
            if leaves[position] != literal:
                raise PlanMismatch(
                    f"input {position} is {leaves[position]!r}, and the plan was made for {literal!r}: "
                    "values that are not tensors are part of the plan"
                )
        return leaves

    def check_sources(self, sources: list[torch.Tensor]) -> None:
        """Shapes, dtypes, devices, ``requires_grad``; an input with other strides is replaced by a copy."""
        if self._calls is not None and (shape := self._calls.of(sources)) != self._shape:
            values, self._shape = self._calls.values(shape), shape
            self._sources = [(at, source, values[source.value]) for at, source, _ in self._sources]
            self._expected = _at_a_glance(self._sources)
        if self._are_as_planned([sources[position] for position, _, _ in self._sources]):
            return  # as nearly always: a model has hundreds
        for position, source, value in self._sources:
            tensor = sources[position]
            name = f"{source.kind} {source.target}"
            if not isinstance(tensor, torch.Tensor):
                raise PlanMismatch(f"{name} is {tensor!r}, and the plan was made for a tensor of shape {value.shape}")
            if not is_plain(tensor):
                raise PlanMismatch(why_not_plain(name, tensor))
            if tuple(tensor.shape) != value.shape:
                raise PlanMismatch(
                    f"{name} has shape {tuple(tensor.shape)}, and the plan was made for {value.shape}; plan again for "
                    "this shape (a last, smaller batch: drop_last=True, or the model without the plan)"
                )
            if tensor.dtype != value.dtype or tensor.device != value.device:
                raise PlanMismatch(
                    f"{name} is {tensor.dtype} on {tensor.device}, and the plan was made for "
                    f"{value.dtype} on {value.device}"
                )
            if tensor.requires_grad != source.requires_grad and (source.kind != INPUT or tensor.requires_grad):
                raise PlanMismatch(
                    f"{name} has requires_grad={tensor.requires_grad}, and the plan was made for {source.requires_grad}"
                )
            if tensor.stride() != value.stride:
                if source.kind != INPUT:
                    raise PlanMismatch(
                        f"{name} has strides {tensor.stride()}, and the plan was made for {value.stride}"
                    )
                if source.value in self._written:
                    raise PlanMismatch(
                        f"{name} has strides {tensor.stride()}, the plan was made for {value.stride}, and the forward "
                        "pass changes it in place: a copy would be changed instead"
                    )
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "%s has strides %s, not %s: it is copied at each step", name, tensor.stride(), value.stride
                    )
                copy = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
                sources[position] = copy.copy_(tensor)

    def _are_as_planned(self, tensors: list[torch.Tensor]) -> bool:
        shapes, strides, dtypes, require, devices = self._expected
        return (
            PLAIN.issuperset(map(type, tensors))
            and [tensor.shape for tensor in tensors] == shapes
            and [tensor.stride() for tensor in tensors] == strides
            and [tensor.dtype for tensor in tensors] == dtypes
            and [tensor.requires_grad for tensor in tensors] == require
            and [tensor.device for tensor in tensors] == devices
        )
