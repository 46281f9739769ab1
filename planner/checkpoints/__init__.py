"""A step whose memory is counted at a few checkpoints only: a bound on every plan, and plans, in seconds.

``program.py`` has the checkpoint program. A point of it is made a plan by ``plans.py``; ``in_place.py`` then chooses
what may be overwritten, and ``repair.py`` makes a plan fit that exceeds the budget between the checkpoints.
"""
