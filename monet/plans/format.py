"""What a plan file holds: a straight list of steps, and the place of every buffer. See ``docs/plan-format.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = "monet-plan"
VERSION = 5
ALIGNMENT = 64
"""Bytes: every offset and size in the arena is a multiple of it."""
CUDA_ALIGNMENT = 512
"""Bytes: on a GPU, offsets are multiples of it, as those of PyTorch's allocator are: kernels are chosen by that."""
COPY_ALIGNMENT = 4096
"""Bytes: offsets of what is copied to a second memory and its places there are multiples of it, and so many are
copied."""


def whole_blocks(count: int) -> int:
    """``count`` bytes, or an address, rounded up to a multiple of ``COPY_ALIGNMENT``."""
    return (count + COPY_ALIGNMENT - 1) // COPY_ALIGNMENT * COPY_ALIGNMENT


WRITE, READ, WAIT = "write", "read", "wait"
"""Kinds of steps that copy: to the second memory, back from it, and until such a copy is over."""
FREED, KEPT = "freed", "kept"
"""What the training loop does with gradients before the next forward pass."""


def aligned(size: int) -> int:
    """``size`` bytes, rounded up to a multiple of ``ALIGNMENT``."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Buffer:
    """``bytes`` bytes at ``offset`` in the arena, in use during ticks [begin, end).

    A *tick* is finer than a step, since temporaries come and go inside one; ``first`` and ``last``
    are the steps (inclusive) that contain the first and the last tick. ``value`` names what it
    holds first; an in-place step may rename its content. ``leaves``: what it holds at the end, as a
    gradient, outlives the step: it is in use until the last tick, and the next step begins once
    nobody holds it any more, or elsewhere.
    """

    id: int
    value: str
    bytes: int
    offset: int
    begin: int
    end: int
    first: int
    last: int
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One operator run, or a copy to or from a second memory.

    ``kind``: ``forward``, ``recompute``, ``backward`` or ``update``; of a copy, whose ``node`` is the value that is
    copied, ``write`` (reads its buffer, from here until the ``wait`` for it, which reads it too), ``read`` (requests a
    buffer, whose content is there from the ``wait`` on, which writes it) or ``wait``; ``place`` is its offset in the
    second memory. ``reads`` maps each arena
    value it reads to the buffer that holds it; ``writes`` each value it makes, likewise (an
    in-place step writes a buffer that it reads). ``requests``: for each memory request that the
    implementation makes, in order, the buffer that serves it, or None where PyTorch's own allocator
    does (values that outlive the step and have no buffer: outputs, and gradients that the loop
    keeps). ``begin`` is its first tick. ``workers``: the last of the requests is memory that the
    other threads of the operator's parallel loops share evenly.
    """

    kind: str
    node: str
    implementation: str
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    requests: tuple[int | None, ...]
    request_bytes: tuple[int, ...]
    begin: int
    workers: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PlanData:
    """The fields of a plan. All ``*_bytes`` are exact; ``*_s`` are predicted seconds.

    ``second_bytes``: what the step needs of a second memory; 0 where it copies nothing.
    ``peak_bytes`` = ``fixed_bytes`` + ``arena_bytes`` and is at most ``budget_bytes``.
    ``fixed``: breakdown of ``fixed_bytes`` (parameters, buffers, gradients, inputs, outputs, buckets, reserve).
    ``model``: fingerprint and description of the captured graph and its inputs.
    ``environment``: what the plan depends on: ``torch`` (its version), ``device``, ``threads``, and ``profile``: the
    PyTorch, processor and threads of the measurements, as one line of text.
    ``solver``: objective_s, bound_s, gap, bound_scope, status, baseline_s, baseline_peak_bytes, eager_peak_bytes;
    order, layout: methods; order_peak_bytes, order_bound_bytes: the order's certificate, in whole runs.
    Nothing in a plan is a wall-clock time of planning, so equal inputs give equal files.
    """

    budget_bytes: int
    arena_bytes: int
    arena_bound_bytes: int
    fixed_bytes: int
    fixed: Mapping[str, int]
    steps: tuple[PlanStep, ...]
    buffers: tuple[Buffer, ...]
    second_bytes: int = 0
    model: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    solver: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """All that the step holds at once at most: what is there throughout, and the arena."""
        return self.fixed_bytes + self.arena_bytes
