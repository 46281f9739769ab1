"""What monet is compared with: ``pytorch.py``, ``checkmate.py``, ``segments.py`` (√n and others), ``gist.py``;
``runs.py`` is what they share.
"""
