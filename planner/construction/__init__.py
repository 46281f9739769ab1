"""Plans without a solver: ``walks.py`` walks through a step under a budget, ``reruns.py`` says what must run again so
that tensors are there, and ``first_plans.py`` chooses among walks.
"""
