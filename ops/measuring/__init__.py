"""Seconds and memory requests of implementations.

``profiling.py`` measures a catalogue: ``signature.py`` names a measurement, ``bench.py`` makes one, ``requests.py``
reads what the recorder saw, ``cache.py`` keeps it. ``lengths.py`` and ``factorizations.py`` say on what some
operators are measured; ``busy_machine.py`` warns.
"""
