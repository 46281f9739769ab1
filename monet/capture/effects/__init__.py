"""What a forward pass does beside its results: found while it is traced, then done again by a planned step, or refused.

``attribute_writes.py`` has what it assigns, ``module_changes.py`` finds that and puts it back, ``filled_containers.py``
tells what is done to containers. ``held_state.py``, ``written_tensors.py`` and ``given_containers.py`` do so for what
no attribute shows, ``python_random.py`` for global random numbers. ``tensor_hooks.py`` has what is asked of autograd,
``value_conditions.py`` conditions on values; ``same_outputs.py`` compares what was traced with what eager makes.
"""
