"""Which code made what is kept: another one may make something else."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def code_version(*folders: Path) -> str:
    """Of the Python and C++ files in ``folders`` and below them."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for kind in ("*.py", "*.cpp", "*.h") for path in folder.rglob(kind)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
