"""Seconds and memory requests of implementations that are not run: from shapes, and from rates of this machine.

``work.py`` counts operations and bytes, ``convolutions.py`` those of oneDNN's kernels; ``temporaries.py`` has what
kernels are known to ask for besides their results; ``rates.py`` says how fast each kind of kernel is, which
``monet.pipeline.calibration`` measures on small models. ``profiling.py`` puts a profile together.
"""
