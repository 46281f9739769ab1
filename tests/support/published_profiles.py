"""The published P100 profiles, for tests that are skipped where they are missing."""

from __future__ import annotations

import pytest
from repository import INSTANCES

P100 = INSTANCES / "p100"
GIB = 2**30
published = pytest.mark.skipif(not P100.is_dir(), reason=f"no published profiles in {P100}; set MONET_INSTANCES")
