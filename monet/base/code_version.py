"""Which code made what is kept: another one may make something else."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def code_version(*folders: Path) -> str:
    """Of the Python files in ``folders`` and below them."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
