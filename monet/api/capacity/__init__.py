"""Will a training step fit into a memory, and what does that cost?

``asking.py`` has ``monet.fit``, ``search.py`` looks for the answer, ``answer.py`` is the answer and ``text.py`` what
people read of it. ``steps.py`` gives the step at any batch, of a model or of a configuration.
"""
