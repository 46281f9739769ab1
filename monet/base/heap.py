"""The C library's heap."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Give the system back what the C library keeps of freed memory, where it can (glibc)."""
    trim_heap = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim_heap is not None:
        trim_heap(0)
