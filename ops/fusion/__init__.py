"""Regions of a step as single operators, run by kernels that PyTorch's compiler makes of them.

- ``regions.py``: which operators of a graph become one.
- ``fused.py``: what such an operator is: a program of aten calls, as data, and its call.
- ``cross_entropy.py``: that of a loss over rows of classes, whose parts aten has in other operators.
- ``offers.py``: what a region may be run by.
- ``compiling.py``: the kernel of a program for one geometry of its inputs, by Inductor.
"""
