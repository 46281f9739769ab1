"""The stages, one after the other, each from frozen value to frozen value.

``preparation.py`` captures and measures a step, or estimates it by the rates of ``calibration.py``; ``lowering.py``
makes the planner's problem of it (``current_scales.py`` looks at parameters, ``eager/`` counts eager's memory).
``planning.py`` plans it for a budget: ``fitting.py`` goes through orders of the operators (``orders.py``), in each of
which ``attempts.py`` solves, orders (``schedule.py``, ``run_graph.py``) and places (``unrolling.py``, ``placement.py``)
until the arena fits (``fit.py`` has what is asked and how far it is); ``known_plans.py`` keeps the plans found,
``summary.py`` says what came out, and ``meter.py`` who is told how far a solve is.
"""
