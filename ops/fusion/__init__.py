"""Regions of a step as single operators, run by kernels that PyTorch's compiler makes of them.

- ``regions.py``: which operators of a graph become one.
- ``fused.py``: what such an operator is: a program of aten calls, as data, and its call.
- ``compiling.py``: the kernel of a program for one geometry of its inputs, by Inductor.
"""
