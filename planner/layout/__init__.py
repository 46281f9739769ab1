"""The place of buffers in an arena.

``arena.py`` is the entry, ``lifetimes.py`` what is placed, ``document.py`` its file, ``methods.py`` the ways to do
it: ``heuristics.py``, ``exact_search.py`` (on ``pieces.py``), ``program.py``, and ``reinsertion.py``, which
improves. ``load.py`` is the bound, ``order_lifetimes.py`` buffers of an order, ``caching_allocator.py`` what
PyTorch's would reserve.
"""

from monet.planner.layout.arena import METHODS, Layout, layout
from monet.planner.layout.lifetimes import Lifetime

__all__ = ["METHODS", "Layout", "Lifetime", "layout"]
