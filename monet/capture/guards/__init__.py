"""What tracing a model read in Python, compared before each planned step.

``code_reads.py`` finds the names that a forward pass's code reads, ``model_guard.py`` what they stand for in a model
and how a difference is told. ``watch.py`` compares. ``attribute_writes.py`` has what a forward pass
assigns, ``module_hooks.py`` which hooks are traced.
"""
