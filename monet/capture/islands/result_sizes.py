"""What an island returns at other shapes than the largest: found by calling it at a few, said by its arguments."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from monet.base.sizes import Ranges
from monet.capture.islands.operators import Geometry, memory_order, strides_in
from monet.capture.islands.state import Described
from monet.errors import CaptureError


class SizeRule(NamedTuple):
    """A size of a result: ``factor`` times those of the arguments at ``axes``, each a tensor's position and an axis."""

    factor: int
    axes: tuple[tuple[int, int], ...]

    def of(self, tensors: Sequence[torch.Tensor]) -> Any:
        """For such arguments; a symbol where they have some."""
        return self.factor * math.prod(tensors[position].shape[axis] for position, axis in self.axes)


ResultRules = tuple[tuple[SizeRule, ...], ...]
"""Of each result, a rule a dimension."""


def result_rules(name: str, calls: Sequence[tuple[Described, Described]]) -> ResultRules:
    """``calls``: arguments and results of the island ``name`` at several shapes, the largest first. Raises
    ``CaptureError`` where a size of a result is no product of sizes of arguments."""
    arguments, results = zip(*calls, strict=True)
    if len({len(of) for of in results}) > 1 or len({len(of) for of in arguments}) > 1:
        raise CaptureError(f"{name} takes or returns more tensors at some shapes than at others")
    axes = [(i, axis) for i, (_, shape) in enumerate(arguments[0]) for axis in range(len(shape))]
    numbers = {at: tuple(of[at[0]][1][at[1]] for of in arguments) for at in axes}
    varying = [at for at in axes if len(set(numbers[at])) > 1]
    rules = []
    for position, (_, shape) in enumerate(results[0]):
        found = []
        for axis in range(len(shape)):
            sizes = tuple(of[position][1][axis] for of in results)
            rule = _rule(sizes, varying, numbers)
            if rule is None:
                raise CaptureError(
                    f"{name} returns a tensor of shape {list(shape)} whose size along axis {axis} is no product of "
                    f"sizes of its arguments: {', '.join(map(str, sizes))} at the shapes that were tried"
                )
            found.append(rule)
        rules.append(tuple(found))
    return tuple(rules)


def _rule(
    sizes: tuple[int, ...], varying: Sequence[tuple[int, int]], numbers: dict[tuple[int, int], tuple[int, ...]]
) -> SizeRule | None:
    if len(set(sizes)) == 1:
        return SizeRule(sizes[0], ())
    for count in (1, 2, 3):
        for axes in itertools.combinations_with_replacement(varying, count):
            products = [math.prod(of) for of in zip(*(numbers[at] for at in axes), strict=True)]
            factor = sizes[0] // max(1, products[0])
            if all(size == factor * product for size, product in zip(sizes, products, strict=True)):
                return SizeRule(factor, axes)
    return None


def geometry_by(rules: ResultRules, largest: Geometry, tensors: Sequence[torch.Tensor]) -> Geometry:
    """Of the results for these arguments; ``largest``: at the largest shape, without rules at every shape."""
    if not any(rule.axes for of in rules for rule in of):
        return largest
    found = []
    for of, (dtype, shape, stride) in zip(rules, largest, strict=True):
        sizes = tuple(rule.of(tensors) for rule in of)
        found.append((dtype, sizes, strides_in(sizes, memory_order(shape, stride))))
    return tuple(found)


def smaller_shapes(ranges: Ranges) -> list[list[dict[str, int]]]:
    """Shapes below the largest one, of which each dimension is tried at: alone at its least, an odd, an even and a
    middle one; and one at which all dimensions are smaller."""
    groups = []
    for d in ranges.dimensions:
        sizes = {d.least, max(d.least, d.most // 2), max(d.least, d.most - 1), max(d.least, d.most - 2)} - {d.most}
        groups.append([{d.name: size} for size in sorted(sizes, reverse=True)])
    if len(groups) > 1:
        groups.append([{name: size for shape in groups for name, size in shape[len(shape) // 2].items()}])
    return [group for group in groups if group]


def inputs_of(
    args: Sequence[Any], kwargs: Any, ranges: Ranges, shape: dict[str, int], *, clamped: bool
) -> tuple[tuple[Any, ...], Any]:
    """The beginnings of these inputs, which have the largest shape. ``clamped``: whole numbers of inputs that have none
    of the dimensions are below the smallest size: they may be lengths, or positions."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        axes = ranges.inputs.get(position, ())
        for axis, name in enumerate(axes):
            if name in shape:
                leaf = leaf.narrow(axis, 0, shape[name])
        whole = not leaf.dtype.is_floating_point and not leaf.dtype.is_complex and leaf.dtype is not torch.bool
        if clamped and whole and any(name not in axes for name in shape):
            leaf = leaf.clamp(max=max(1, min(shape.values()) - 1))
        leaves[position] = leaf.contiguous()
    made: tuple[tuple[Any, ...], Any] = pytree.tree_unflatten(leaves, spec)
    return made
