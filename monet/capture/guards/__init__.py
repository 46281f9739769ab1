"""What tracing a model read in Python, compared before each planned step.

``code_names.py`` finds the names that a piece of code reads, ``code_reads.py`` and ``model_reads.py`` what follows from
these, ``model_guard.py`` what they stand for in a model. ``watch.py`` compares, ``differences.py`` says what differs.
``attribute_writes.py`` has what a forward pass assigns, ``module_changes.py`` finds that and puts it back,
``held_state.py``, ``written_tensors.py`` and ``given_containers.py`` do so for what no attribute shows.
``filled_containers.py`` tells what is done to containers, ``module_hooks.py`` which hooks are traced.
"""
