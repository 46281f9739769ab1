"""A folder of a disk that copies can go to."""

from __future__ import annotations

from pathlib import Path

import pytest
from moved_steps import disk_or_skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk_or_skip(tmp_path_factory.mktemp("disk"))
