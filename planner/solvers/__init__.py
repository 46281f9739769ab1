"""Mixed-integer solvers behind one interface.

``model.py`` has what a solver is given and gives back, ``rows.py`` builds it, ``finder.py`` finds a solver by name,
``scaling.py`` changes units around every one of them; ``highs.py`` and ``cvxpy.py`` are the adapters.
"""
