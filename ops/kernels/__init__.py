"""Kernels of the project's own, each in C++ beside the file that calls it.

``bits`` packs branches into bits, ``pool_index`` the indices of max pooling into bytes, ``packed`` has Gist's
storages, ``norms`` normalises with ATen's roundings (``norm_variants.py`` finds which), and ``scales`` looks at the
parameters that a plan's guards bound. ``ahead.py`` builds them while a step is captured. ``formats`` names
floating-point formats, and ``stand_in.py`` makes tensors without memory.
"""
