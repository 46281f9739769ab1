"""A plan inside a training loop that exists: the model itself is called, and its training calls run by plans.

``slot.py`` is what stands in the model's slot for a compiled call; ``training_calls.py`` decides how each call is run,
by the ``call_geometry.py`` of it; ``plan_source.py`` makes plans, or finds them among ``kept_plans.py`` on disk.
``lifted_graph.py`` is a model as ``torch.compile`` hands it over.
"""
