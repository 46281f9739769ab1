"""Mixed-integer solvers behind one interface.

``model.py`` has what a solver is given and gives back, and ``rows.py`` builds what it is given. ``finder.py`` finds
a solver by name, ``scaling.py`` changes units around each of them, and ``highs.py`` and ``cvxpy.py`` are the
adapters.
"""
