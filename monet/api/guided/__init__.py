"""A planned arena for steps that no graph captures, after Sekiyama et al. (2018): record, place, serve.

    arena.py: one step after the other (``monet.native.guided`` serves and records)
      →  requests.py: what is known of a step's requests
      →  placement.py: their places, by the project's own layout
      →  report.py and page.py: what came of it, as text and to look at

``script.py`` finds the steps of a script that nobody wants to edit.
"""

from monet.api.guided.arena import GuidedStep, ProfileGuidedArena, profile_guided
from monet.api.guided.report import GuidedReport

__all__ = ["GuidedReport", "GuidedStep", "ProfileGuidedArena", "profile_guided"]
