"""Normalizations: ``batch_norm.py``, ``row_norm.py`` (layer and group norm), ``rms_norm.py``, and ``least_scale.py``,
which guards what is computed back from an output.
"""
