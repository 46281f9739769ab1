"""A second, larger memory that a plan may move tensors to.

``offload.py``: what a person asks for, as ``--offload`` takes it. ``folder.py``: which disk. ``bandwidth.py``: how fast
it is, measured by ``trials.py`` and kept. A disk's channel is ``monet/native/channel.cpp``; ``streams.py`` copies
between a GPU and main memory. ``waits.py``: how long steps waited.
"""
