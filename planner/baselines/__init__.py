"""What others do with the same operators, as solutions.

``pytorch.py``, ``checkmate.py``, ``segments.py`` (√n and others), ``checkpoint.py`` (around repeated blocks, which
``blocks.py`` finds) and ``gist.py``; ``runs.py`` is what they share.

Each takes a problem and a budget and gives a solution that replays like any other. Apart from ``checkmate_d`` they
follow a fixed policy, prove nothing (status ``heuristic``, no ``proof``) and raise ``InfeasibleBudget``, with the
bytes they would need, where that policy does not fit. The first implementation of an operator is its default.
docs/baselines.md has the papers and what is left out of them.
"""
