"""A second, larger memory that a plan may move tensors to.

``offload.py``: what a person asks for, as ``--offload`` takes it. ``folder.py``: which disk. ``bandwidth.py``: how fast
it is, measured and kept. The channel itself is ``monet/native/channel.cpp``.
"""
