"""The 0-1 program.

``windows.py`` says where recomputation is considered (``peaks.py``: stages besides, ``dominance.py``:
implementations that no plan needs), ``program.py`` has the columns, ``constraints.py`` and ``memory_rows.py`` the
rows, ``relaxation.py`` a bound on all plans, and ``readback.py`` translates between points and runs.
"""
