"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step; whatever goes wrong, no half-written file is left there.

    A link stays one: the file that it leads to is written. What is no file (a pipe, ``/dev/stdout``) is written to.
    """
    if (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f"{path.name}.tmp{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """``text`` in UTF-8, with its own line ends, written whole or not at all."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """``content`` as indented JSON, written whole or not at all."""
    write_text_atomically(path, json.dumps(content, indent=2) + "\n")
