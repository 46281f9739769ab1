"""What is known of the requests of steps of one kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monet.native.guided import Integers

HELD = -1
"""The death of a block that was still held when its step ended: it has no place (Sekiyama et al., section 4.3)."""


@dataclass(frozen=True)
class Requests:
    """Bytes of each request in order, and when its block was born and died on the step's clock, which ticks with every
    request and every release. A block that was ever held beyond a step has died ``HELD``."""

    bytes: Integers
    born: Integers
    died: Integers

    def __len__(self) -> int:
        return len(self.bytes)

    @property
    def placed(self) -> npt.NDArray[np.bool_]:
        """The requests that get a place."""
        return np.not_equal(self.died, HELD)

    def equals(self, other: Requests) -> bool:
        """Whether the places of one are right for the other."""
        return (
            np.array_equal(self.bytes, other.bytes)
            and np.array_equal(self.born, other.born)
            and np.array_equal(self.died, other.died)
        )

    def merged(self, other: Requests) -> Requests:
        """What is known after another step: with as many requests, the larger size and the union of the lifetimes of
        each; else the longer step."""
        if len(self) != len(other):
            return max(self, other, key=len)
        held = ~self.placed | ~other.placed
        return Requests(
            np.maximum(self.bytes, other.bytes),
            np.minimum(self.born, other.born),
            np.where(held, HELD, np.maximum(self.died, other.died)),
        )
