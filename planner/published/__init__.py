"""Published instances: ``document.py`` checks a profile's document, ``profile.py`` makes a problem of it, and
``solution.py`` reads and writes published solutions.
"""
