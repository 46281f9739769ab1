"""Load: the bytes alive at one tick. Buffers that are alive together share no bytes: no layout is below any load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def load_over_time(begin: Integers, end: Integers, size: Integers) -> tuple[Integers, Integers]:
    """The load as a step function: (ticks, sizes alive from that tick up to the next one).

    Lifetimes are the half-open ``[begin[i], end[i])``. ``ticks`` are the distinct begins and ends in
    increasing order; the last load is 0. The unit is that of ``size``.
    """
    ticks, place = np.unique(np.concatenate((begin, end)), return_inverse=True)
    change = np.zeros(len(ticks), np.int64)
    np.add.at(change, place, np.concatenate((size, -size)))
    return ticks, np.cumsum(change)
