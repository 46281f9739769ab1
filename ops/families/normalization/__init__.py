"""Normalizations: ``batch_norm.py``, ``row_norm.py`` (layer and group norm) and ``rms_norm.py``.

``least_scale.py`` guards what is computed back from an output; ``kernel_inputs.py`` knows what the kernels can read.
"""
