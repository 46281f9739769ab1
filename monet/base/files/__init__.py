"""What lies on disk: ``atomic.py`` writes files whole or not at all, ``cache.py`` has the user's cache, and
``frozen_json.py`` frozen dataclasses as JSON.
"""
