"""Rankings of buffers: what an exact search tries first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces

NOISES = (0.0, 0.2, 0.5, 1.0)
"""Of a random ranking, one by chance: the standard deviation of the logarithm of a random factor on each key."""


class Rankings:
    """Orders of all buffers: what to try first comes first.

    The keys are lifetime, area, size, and the largest load while a buffer is alive. ``standard``: by four sequences of
    three keys; on one of minimalloc's hard instances one sequence finds at once what the others do not find in millions
    of nodes. ``random``: by sequences at random, with noise; on other instances many short tries find what long ones
    do not.
    """

    def __init__(self, pieces: Pieces) -> None:
        alive = pieces.per_buffer(np.add, pieces.end - pieces.begin).astype(np.float64)
        self._keys = (alive, pieces.size * alive, pieces.crowd().astype(np.float64), pieces.size.astype(np.float64))
        self._rng = np.random.default_rng(0)
        alive_, area, crowd = 0, 1, 2
        sequences = ((alive_, area, crowd), (crowd, area, alive_), (crowd, alive_, area), (area, alive_, crowd))
        self.standard = [self._by(sequence, 0.0) for sequence in sequences]

    def random(self) -> Integers:
        """Another ranking at every call; the same sequence of them in every run."""
        sequence = tuple(self._rng.permutation(len(self._keys))[:3].tolist())
        return self._by(sequence, float(self._rng.choice(NOISES)))

    def _by(self, sequence: Sequence[int], noise: float) -> Integers:
        """Largest first, by the keys of ``sequence``, the first of them counting most."""
        keys = [-self._keys[k] for k in reversed(sequence)]
        if noise:
            keys = [key * np.exp(noise * self._rng.standard_normal(len(key))) for key in keys]
        return np.lexsort(tuple(keys))
