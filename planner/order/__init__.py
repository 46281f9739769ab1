"""The order of operators.

``ordering.py`` is the entry, ``graph.py`` what is ordered, ``document.py`` its file. ``heuristics.py`` are orders
in linear time; ``forced_live.py`` and ``min_cut.py`` bound all orders (``ancestry.py``). ``whole.py`` orders a
whole graph, ``segments.py`` the parts between places that every order passes, ``pool.py`` in several processes,
``stretch.py`` parts of an order; ``exact_search.py`` is exact (``lookahead.py``: what is made too early),
``program.py`` MODeL's. All run in a ``race.py``.
"""

from monet.planner.order.ordering import METHODS, Ordered, best_order

__all__ = ["METHODS", "Ordered", "best_order"]
