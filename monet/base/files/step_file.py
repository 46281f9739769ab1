"""The file of a measured step, as far as it is a file: its format, version and checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monet.base.files.atomic import write_text_atomically
from monet.errors import ConfigError

FORMAT, VERSION = "monet-step", 1


def write_step_file(path: Path, content: Mapping[str, Any]) -> None:
    """``content`` with what tells the file from others; whole or not at all."""
    text = _text(content)
    head = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    write_text_atomically(path, f"{json.dumps(head)[:-1]},\n{text[1:]}\n")


def is_step_file(path: Path) -> bool:
    """Whether the file says that it is one; False also for what cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return f'"format": "{FORMAT}"' in file.readline(200)
    except (OSError, UnicodeDecodeError):
        return False


def read_step_file(path: Path) -> dict[str, Any]:
    """What was written there. Raises ``ConfigError`` for anything else, a file of another version included."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        head = {name: document.pop(name) for name in ("format", "version", "sha256")}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read as a measured step: {why}; write it again (monet profile)") from None
    if (head["format"], head["version"]) != (FORMAT, VERSION):
        raise ConfigError(
            f"{path} is in the format {head['format']} {head['version']}, and this monet reads {FORMAT} {VERSION}; "
            "write it again with this monet (monet profile)"
        )
    if hashlib.sha256(_text(document).encode()).hexdigest() != head["sha256"]:
        raise ConfigError(f"{path} is damaged: its checksum is another one; copy it again, or write it again")
    return document


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
