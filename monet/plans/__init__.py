"""The plan and its checker, as docs/plan-format.md describes them; nothing here knows how a plan is made.

``plan.py`` has the values, ``document.py`` writes and reads the file, and ``verifier.py`` checks a plan with code
that shares nothing with the planner's.
"""
