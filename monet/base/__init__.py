"""What every stage shares: ``graph.py`` and ``measurement.py`` are the values that operators and capture exchange; the
others read amounts, write files, report progress, keep quiet, and look at PyTorch's settings and version.
"""
