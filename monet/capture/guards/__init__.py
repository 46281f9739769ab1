"""What tracing a model read in Python, compared before each planned step.

``code_names.py`` finds the names that a piece of code reads, ``code_reads.py`` and ``model_reads.py`` what follows from
these, ``model_guard.py`` what they stand for in a model and how a difference is told. ``watch.py`` compares.
``attribute_writes.py`` has what a forward pass assigns, ``filled_containers.py`` what it puts into containers,
``module_hooks.py`` which hooks are traced.
"""
