"""The project's C++: ``compiling.py`` builds a file on first use, ``library.py`` loads it beside torch.

``allocator.py`` and ``allocator.cpp`` are the arena and the recorder; ``crew.cpp`` knows the threads of parallel
loops. ``compiling.py`` is imported where there is no torch, so nothing is imported here.
"""
