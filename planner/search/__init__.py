"""The search for a plan: ``fastest.py`` under a budget, ``smallest.py`` for the least memory; ``solving.py`` says how.

Both are a ``state.py`` (with ``best.py``, the best so far) over the program of ``scope.py``: a ``search.py``
improves neighbourhoods (``neighbourhoods.py``) and solves the whole, while a ``worker.py`` goes on improving on the
same ``formulation.py``. ``proof.py`` bounds every plan, ``refusal.py`` says that none fits.
"""

from monet.planner.search.fastest import plan_problem
from monet.planner.search.smallest import smallest_plan
from monet.planner.search.solving import Solving

__all__ = ["Solving", "plan_problem", "smallest_plan"]
