"""Activations: ``piecewise.py`` (two branches, so bits do), ``smooth.py``, ``softmax.py``, and ``branch.py``, what the
first share.
"""
