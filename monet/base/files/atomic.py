"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_TEMPORARY = re.compile(r"\.tmp[0-9a-f]{8}")


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``path`` in one step at the end; whatever goes wrong, no half-written file is
    left there.

    A link stays one: the file that it leads to is written. What is no file (a pipe, ``/dev/stdout``) is written to.
    """
    if (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        with open(path, "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f"{path.name}.tmp{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            force_out(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def force_out(file: BinaryIO) -> None:
    """Until what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step."""
    with written_atomically(path) as file:
        file.write(content)


def remove_leftovers(path: Path) -> None:
    """What processes that were killed while they wrote ``path`` have left. Nobody may be writing it."""
    for found in path.parent.iterdir():
        if found.name.startswith(path.name) and _TEMPORARY.fullmatch(found.name[len(path.name) :]):
            found.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """``text`` in UTF-8, with its own line ends, written whole or not at all."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """``content`` as indented JSON, written whole or not at all."""
    write_text_atomically(path, json.dumps(content, indent=2) + "\n")
