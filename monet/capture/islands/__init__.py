"""Parts of a model that cannot be traced, and run as they are inside of a plan.

``leaving_out.py`` makes a capture with them: ``finding.py`` says which modules an error of tracing is about,
``trial.py`` calls them once on real tensors to know what they return, and what they hold, and puts operators
(``operators.py``) in their places while the model is traced. ``island.py`` is what runs; ``binding.py`` finds it by its
operator. ``state.py`` puts back what a call leaves behind.
"""
