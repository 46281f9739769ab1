"""Measured costs of operator implementations: what an operator asks for, when, and how long it takes."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """``bytes`` asked from the allocator during ticks [begin, end) of the operator.

    ``end`` None: still held when the operator returns. ``output``: position of the result that lives in it.
    ``workers``: all that the other threads of the operator's parallel loops ask for, in no order; they share these
    bytes evenly. At most one request is such, the last.
    """

    bytes: int
    begin: int
    end: int | None
    output: int | None
    workers: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """``time_s``: median seconds. ``ticks``: how many events the requests are spread over, at least 1."""

    time_s: float
    requests: tuple[Request, ...]
    ticks: int

    def workspace_bytes(self, outside: Container[int] = (), alignment: int = 1) -> int:
        """Peak bytes while it runs, beyond its outputs.

        ``outside``: outputs, by their positions, whose bytes are counted elsewhere during the whole operator: neither
        what they ask for nor what they would leave free counts. ``alignment``: each request takes a multiple of it.
        """
        counted = [
            (request, -(-request.bytes // alignment) * alignment)
            for request in self.requests
            if request.output is None or request.output not in outside
        ]
        outputs = sum(size for request, size in counted if request.output is not None)
        peak = 0
        for tick in range(self.ticks):
            alive = sum(size for r, size in counted if r.begin <= tick and (r.end is None or tick < r.end))
            peak = max(peak, alive)
        return max(0, peak - outputs)
