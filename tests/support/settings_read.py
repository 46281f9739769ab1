"""A module whose globals a model reads; tests change them."""

FACTOR = 1.0
SHIFT = 0.0
EXTRA = 1.0


class Numbers:
    gain = 1.0
