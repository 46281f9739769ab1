"""Published instances: ``document.py`` checks a file, ``profile.py`` makes a problem of a profile, ``solution.py``
reads and writes published schedules.
"""
