"""From requests to places in one arena."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monet.api.guided.requests import Requests
from monet.native.guided import Integers
from monet.planner.layout.arena import layout
from monet.planner.layout.lifetimes import Lifetime

PYTORCH = -1
"""The offset of a request that has no place."""


@dataclass(frozen=True)
class Placement:
    """``offsets`` of ``requests``, ``PYTORCH`` for none, in an arena of ``arena_bytes``; no arena that has these
    requests is smaller than ``bound_bytes``. ``layout_s``: seconds that this took; ``method``: what found it."""

    requests: Requests
    offsets: Integers
    arena_bytes: int
    bound_bytes: int
    method: str
    layout_s: float


def place(requests: Requests, time_limit_s: float, held: Sequence[tuple[int, int]] = ()) -> Placement:
    """Places for the requests whose blocks died within their step, beside what is ``held`` in the arena for longer:
    offset and bytes of each.

    As in the paper: the lowest place first, and of those that fit there the block that lives longest (section 3.2);
    then, unless that is proven to be the least, other heuristics and the exact search, until ``time_limit_s`` is over.
    """
    begun = time.monotonic()
    numbers = np.flatnonzero(requests.placed)
    lifetimes = [
        Lifetime(int(i), int(requests.bytes[i]), int(requests.born[i]), int(requests.died[i])) for i in numbers
    ]
    if held and lifetimes:
        begin, end = min(life.begin for life in lifetimes), max(life.end for life in lifetimes)
        lifetimes += [
            Lifetime(len(requests) + k, size, begin, end, offset=offset) for k, (offset, size) in enumerate(held)
        ]
    found = layout(lifetimes, time_limit_s=time_limit_s)
    offsets = np.full(len(requests), PYTORCH, dtype=np.int64)
    offsets[numbers] = found.offsets[: len(numbers)]
    seconds = time.monotonic() - begun
    return Placement(requests, offsets, found.arena_bytes, found.bound_bytes, found.method, seconds)
