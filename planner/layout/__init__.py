"""The place of buffers in an arena.

``arena.py`` is the entry, ``lifetimes.py`` what is placed, ``pieces.py`` the same as arrays, ``document.py`` its
file. ``methods.py`` has the ways to place: ``heuristics.py`` (into gaps, or along a ``skyline.py``),
``exact_search.py``, ``program.py``, the integer program, and ``reinsertion.py``, which improves a layout.
``exact_search.py`` takes two searches in turn, ``valley_search.py`` and ``canonical_search.py``, on each part of a
problem that is apart in time; both run in a ``search_thread.py`` and try buffers in the order of ``rankings.py``.
``load.py`` is the bound, ``order_lifetimes.py`` makes buffers of an order, ``caching_allocator.py`` tells what
PyTorch would reserve for them.
"""

from monet.planner.layout.arena import METHODS, Layout, layout
from monet.planner.layout.lifetimes import Lifetime

__all__ = ["METHODS", "Layout", "Lifetime", "layout"]
