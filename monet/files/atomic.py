"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text_atomically(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step; whatever goes wrong, no half-written file is left there."""
    temporary = path.with_name(f"{path.name}.tmp{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, summary: Mapping[str, Any], measured: Mapping[str, Any] | None = None) -> None:
    """A summary as JSON at ``path``, as ``write_text_atomically``; a measurement goes under the key ``measured``."""
    content = dict(summary) if measured is None else {**summary, "measured": measured}
    write_text_atomically(path, json.dumps(content, indent=2) + "\n")
