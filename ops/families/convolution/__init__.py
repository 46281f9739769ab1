"""Convolutions: ``offers.py`` has their records, ``chunks.py`` runs one in parts, ``im2col.py`` as a matrix product,
``samples.py`` its tests' calls.
"""
