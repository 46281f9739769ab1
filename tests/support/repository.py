"""Where the repository is, and the published instances beside it, which are not part of it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTANCES = Path(os.environ.get("MONET_INSTANCES", ROOT.parent / "shared" / "instances"))
