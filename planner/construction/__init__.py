"""Plans without a solver: ``walks.py`` walks through a step under a budget, ``reruns.py`` says what must run again for
a tensor, and ``first_plans.py`` chooses among walks.
"""
