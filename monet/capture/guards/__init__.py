"""What tracing a model read in Python, compared before each planned step.

``code_names.py`` finds the names that a piece of code reads, ``code_reads.py`` and ``model_reads.py`` what follows from
these, ``model_guard.py`` what they stand for in a model. ``watch.py`` compares, ``differences.py`` says what differs.
``tensor_ties.py`` tells what is one memory, ``module_hooks.py`` which hooks are traced.
"""
