"""The search for a plan: ``fastest.py`` under a budget, ``smallest.py`` for the least memory.

Both hold a ``search.py`` (with ``best.py``, the best so far), which improves stretches (``neighbourhoods.py``),
also beside a solve (``companion.py``), over the program of ``scope.py``. ``proof.py`` bounds every plan,
``refusal.py`` says that none fits.
"""

from monet.planner.search.fastest import plan_problem
from monet.planner.search.smallest import smallest_plan

__all__ = ["plan_problem", "smallest_plan"]
