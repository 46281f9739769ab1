"""The project's C++: ``compiling.py`` builds a file on first use, ``library.py`` loads it beside torch.

``allocator.py`` is Python's side of ``allocator.cpp``, which replaces torch's CPU allocator. Its parts:
``arena.h`` (planned requests and their memory), ``move.h`` (away from gradients that are still held), ``recorder.h``
(what an operator requests) and ``workers.h`` (the other threads of parallel loops; ``crew.cpp`` finds out which these
are). ``compiling.py`` is imported where there is no torch, so nothing is imported here.
"""
