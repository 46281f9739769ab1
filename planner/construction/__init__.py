"""Plans without a solver.

``passes.py`` walks through a step under a budget: a ``walk.py`` is what is in memory, and every choice is tried on a
copy of it (``trials.py``). ``reruns.py`` says what must run again so that a tensor is there, and ``first_plans.py``
chooses among walks.
"""
