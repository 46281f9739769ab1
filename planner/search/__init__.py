"""The search for a plan: ``fastest.py`` under a budget, ``smallest.py`` for the least memory; ``solving.py`` says how.

Both follow a policy (``policy.py``): strategies in turn, for shares of the time limit, by the size of the problem. A
strategy betters a ``state.py``, its incumbent (``incumbent.py``) or its bounds:

    ``relaxation.py``      the checkpoint program (``checkpoints.py``): a bound on every plan, plans near it
    ``walks.py``           constructed plans
    ``exact.py``           exact programs (``scope.py``); ``proof.py`` bounds the full one
    ``two_memories.py``    around plans that move tensors to a second memory
    ``least_peak.py``, ``smallest_moving.py``    for the least memory

On one exact program, a ``search.py`` improves neighbourhoods (``neighbourhoods.py``) and solves the whole, while a
``worker.py`` goes on improving on the same ``formulation.py``. ``refusal.py`` says that no plan fits.
"""

from monet.planner.search.fastest import plan_problem
from monet.planner.search.smallest import smallest_plan
from monet.planner.search.solving import Solving

__all__ = ["Solving", "plan_problem", "smallest_plan"]
