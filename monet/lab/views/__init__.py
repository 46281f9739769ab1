"""What people look at: a plan as text, as a page, and in the formats of other viewers.

``overview.py`` counts what a plan does, ``contents.py`` says what each buffer is for and what is there at the peak,
``origins.py`` where steps come from and what they take; ``page/``, ``snapshot.py``, ``timeline.py`` and
``step_graph.py`` write, ``comparison.py`` says how two plans differ. Nothing here needs more than a plan.
"""
