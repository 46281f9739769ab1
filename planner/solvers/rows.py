"""A 0-1 program as columns and rows, in the units of the problem: seconds and bytes.

``Sum`` is a linear expression over columns, ``Rows`` collects columns and rows, and ``Rows.arrays`` gives them as
compressed rows. Nothing here knows what the columns mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

Presence = tuple[int, ...]
"""Columns whose sum is 1 when something is there and 0 when it is not; ``ALWAYS`` stands for 1."""

ALWAYS_COLUMN = -1
ALWAYS: Presence = (ALWAYS_COLUMN,)
ABSENT: Presence = ()


@dataclass(slots=True)
class Sum:
    """constant + Σ terms[column] · column"""

    constant: float = 0.0
    terms: dict[int, float] = field(default_factory=dict)

    def add(self, columns: Presence | Iterable[int], coefficient: float = 1.0) -> Sum:
        """Adds coefficient · Σ columns, and returns this sum."""
        terms = self.terms
        for column in columns:
            if column == ALWAYS_COLUMN:
                self.constant += coefficient
            else:
                terms[column] = terms.get(column, 0.0) + coefficient
        return self

    def plus(self, other: Sum, factor: float = 1.0) -> Sum:
        """Adds factor · other, and returns this sum."""
        self.constant += factor * other.constant
        for column, value in other.terms.items():
            self.add((column,), factor * value)
        return self

    def at(self, x: Floats) -> float:
        """Its value at a point."""
        return self.constant + sum(value * float(x[column]) for column, value in self.terms.items())

    def copy(self) -> Sum:
        return Sum(self.constant, dict(self.terms))


@dataclass(frozen=True, slots=True)
class Arrays:
    """min cost·x, lower ≤ A·x ≤ upper; A as compressed rows. x is in {0, 1}, or in [0, 1] where not ``integer``."""

    cost: Floats
    integer: npt.NDArray[np.bool_]
    row_start: Ints
    column_index: Ints
    value: Floats
    lower: Floats
    upper: Floats


@dataclass(slots=True)
class Rows:
    """Columns and rows in the making; the fields are those of ``Arrays`` as lists.

    ``continuous``: the columns that may be anything from 0 to 1.
    """

    costs: list[float] = field(default_factory=list)
    continuous: list[int] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def column(self, cost: float = 0.0) -> int:
        """A new column in {0, 1}; returns its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def share(self) -> int:
        """A column that may be anything from 0 to 1."""
        self.continuous.append(self.column())
        return self.continuous[-1]

    def at_most(self, total: Sum, bound: float) -> None:
        """total ≤ bound; left out when no 0-1 point can violate it."""
        room = bound - total.constant
        if sum(value for value in total.terms.values() if value > 0) > room:
            self._row(total.terms, -np.inf, room)

    def exactly(self, total: Sum, value: float) -> None:
        """total = value"""
        self._row(total.terms, value - total.constant, value - total.constant)

    def implies(self, condition: Presence, *causes: Presence) -> None:
        """condition ≤ Σ causes"""
        total = Sum().add(condition)
        for cause in causes:
            total.add(cause, -1.0)
        self.at_most(total, 0.0)

    def excludes(self, *parts: Presence) -> None:
        """Σ parts ≤ 1"""
        total = Sum()
        for part in parts:
            total.add(part)
        self.at_most(total, 1.0)

    def arrays(self) -> Arrays:
        integer = np.ones(len(self.costs), dtype=np.bool_)
        integer[self.continuous] = False
        return Arrays(
            np.array(self.costs, dtype=np.float64),
            integer,
            np.array(self.starts, dtype=np.int32),
            np.array(self.indices, dtype=np.int32),
            np.array(self.values, dtype=np.float64),
            np.array(self.lower, dtype=np.float64),
            np.array(self.upper, dtype=np.float64),
        )

    def _row(self, terms: dict[int, float], lower: float, upper: float) -> None:
        for column, value in terms.items():
            if value:
                self.indices.append(column)
                self.values.append(value)
        self.starts.append(len(self.indices))
        self.lower.append(lower)
        self.upper.append(upper)
