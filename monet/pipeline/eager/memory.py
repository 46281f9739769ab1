"""How much memory eager's step asks the system for anew, however often it has run.

A planned step has its arena from the first step on. Eager's requests go to glibc's ``malloc``, which keeps what is
freed for the next request; but one of 32 MiB or more (``DEFAULT_MMAP_THRESHOLD_MAX``) is the system's own each time,
and comes back as pages that the system has to make when they are first written. Smaller ones come from a heap whose end
may go back, too; whether it does depends on what else lives at its end, so that is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

MAPPED_BYTES = 32 << 20


def asked_anew_bytes(blocks: Iterable[tuple[int, int, int]]) -> int:
    """``blocks``: begin, end and bytes of each request of a step."""
    return sum(size for _, _, size in blocks if size >= MAPPED_BYTES)
