"""Poolings: ``offers.py`` has max pooling's implementations, ``records.py`` all of them and their tests' calls."""
