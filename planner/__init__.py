"""Numbers only: a problem of names, bytes and seconds in, a solution out. Knows no torch and no operators.

``problem.py`` is what is planned, ``solution.py`` what comes out, and ``replay.py`` recounts what a solution costs;
``schedules.py`` names every way to plan, MONeT's parts (``ablation.py``) and what it is compared with.

- ``search/``: the search for a plan, and its proof.
- ``construction/``: plans without a solver, to begin with.
- ``program/``: the 0-1 program.
- ``solvers/``: mixed-integer solvers behind one interface.
- ``order/``, ``layout/``: the order of runs, and the place of their buffers; two stages of their own.
- ``baselines/``: what others do with the same operators.
- ``published/``: profiles and schedules as MONeT's authors published theirs.

``memory_floor.py`` bounds every plan's memory from below, ``runs.py`` leaves out what nothing reads, ``progress.py``
and ``cores.py`` are for whoever waits.
"""
