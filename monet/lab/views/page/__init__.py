"""The page of a plan: ``page.html`` with ``style.css`` and the scripts in it, and the plan as data.

``document.py`` puts it together, ``columns.py`` makes the data. Of the scripts ``plan_data.js`` reads the data and
knows which buffers are in use when, ``viewport.js`` is zoom and pan, ``memory_chart.js`` and ``arena_chart.js`` draw,
``tables.js`` and ``inspection.js`` show words and numbers, and ``main.js`` starts them. They share one scope, and ask
the network for nothing.
"""
