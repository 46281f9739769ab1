"""A plan inside a training loop that exists: the model itself is called, and its training calls run by plans.

``slot.py`` is what stands in the model's slot for a compiled call, which ``applied_text.py`` describes;
``training_calls.py`` decides how each call is run, by the ``call_geometry.py`` of it, which looks at all modules
through ``model_walk.py``; ``plan_family.py`` has what plans of one model share: arenas, a rule, what is said.
``plan_source.py`` makes plans, or finds them among ``kept_plans.py`` on disk; ``inner_checkpoints.py`` notices what
they take the place of. ``several.py`` and ``bucket_padding.py`` are for plans ahead, of batches padded to a few
lengths.
``ranks.py`` lets rank 0 plan for all processes that train a model together. ``lifted_graph.py`` is a model as
``torch.compile`` hands it over.
"""
