"""Which sizes of a model's calls vary, as far as the calls so far have shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from monet.base.sizes import Dimension, Ranges

_Place: TypeAlias = tuple[int, int]
"""Position of a tensor in the flattened call, and an axis of it."""

_SHARE = 4
"""A size is rounded up by less than one part in so many, the first time."""


class SeenSizes:
    """Of the calls of one kind. Axes that had the same size in every call are one dimension.

    ``rounds``: whether the largest sizes are rounded up. ``alone``: whether ranges need to hold the last call alone.
    """

    def __init__(self, shapes: Sequence[Any]) -> None:
        """``shapes``: of a call, as ``InputGeometry`` has them."""
        sizes = _sizes(shapes)
        self._groups: dict[_Place, int] = {}
        self._least, self._most = dict(sizes), dict(sizes)
        self._group(sizes)
        self._has_risen = False
        self.rounds, self.alone = True, False

    def with_call(self, shapes: Sequence[Any]) -> Ranges | None:
        """The ranges that hold this call and those before, rounded up; None where nothing varies. From the second time
        on they are rounded up to powers of two, so that sizes that rise from call to call do not need many plans."""
        sizes = _sizes(shapes)
        if 0 in sizes.values():
            return None
        for place, size in sizes.items():
            self._least[place] = min(self._least[place], size)
            self._most[place] = max(self._most[place], size)
        self._group(sizes)
        dimensions: dict[int, Dimension] = {}
        inputs: dict[int, list[str | None]] = {position: [None] * rank for position, rank in self._ranks().items()}
        for (position, axis), group in self._groups.items():
            most = self._most[position, axis]
            if self._least[position, axis] < most:
                name = f"size{len(dimensions) + 1}"
                most = self._rounded(sizes[position, axis] if self.alone else most)
                inputs[position][axis] = dimensions.setdefault(group, Dimension(name, 1, most)).name
        if not dimensions:
            return None
        self._has_risen = True
        varying = {position: tuple(axes) for position, axes in inputs.items() if any(axes)}
        return Ranges(tuple(dimensions.values()), varying)

    def _group(self, sizes: dict[_Place, int]) -> None:
        """Put axes into groups that had the same size in this call, too."""
        numbers: dict[tuple[int, int], int] = {}
        for place, size in sizes.items():
            self._groups[place] = numbers.setdefault((self._groups.get(place, 0), size), len(numbers))

    def _rounded(self, size: int) -> int:
        if not self.rounds:
            return size
        if self._has_risen and not self.alone:
            return 1 << (size - 1).bit_length()
        step = max(1, (1 << (size.bit_length() - 1)) // _SHARE)
        return -(-size // step) * step

    def _ranks(self) -> dict[int, int]:
        return {position: axis + 1 for position, axis in sorted(self._groups)}


def _sizes(shapes: Sequence[Any]) -> dict[_Place, int]:
    return {
        (position, axis): size
        for position, shape in enumerate(shapes)
        if len(shape) == 4
        for axis, size in enumerate(shape[0])
    }
