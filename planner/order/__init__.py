"""The order of operators.

``ordering.py`` is the entry, ``graph.py`` what is ordered, ``document.py`` its file, ``order_search.py`` the best order
and the best bound so far. ``heuristics.py`` makes orders in linear time; ``forced_live.py`` and ``min_cut.py`` bound
all orders, by ``ancestry.py``. ``exact_search.py`` finds the best order of a small graph (``lookahead.py`` sees
what was made too early): ``whole.py`` asks it about a whole graph, ``segments.py`` about the parts between places
that every order passes, ``pool.py`` about several parts at once, ``stretch.py`` about a part of one order.
``program.py`` is MODeL's integer program.
"""

from monet.planner.order.ordering import METHODS, Ordered, best_order

__all__ = ["METHODS", "Ordered", "best_order"]
