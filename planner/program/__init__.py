"""The 0-1 program.

``windows.py`` says where recomputation is considered (``peaks.py``: at which stages besides) and by which
implementations (``dominance.py``: those that no plan needs are left out). ``program.py`` says what each column
means, ``constraints.py`` makes columns and rows, and ``memory_rows.py`` the rows of memory. ``relaxation.py`` has
the columns of a bound on all plans, and ``readback.py`` translates between points and runs. ``moves.py`` has columns
for moves to a second memory, ``move_rows.py`` and ``channel_rows.py`` their rows; ``given.py`` is for moves that are
decided.
"""
