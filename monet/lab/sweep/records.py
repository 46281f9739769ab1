"""Finished work on disk: JSON files that are there whole or not at all, and say what they belong to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from monet.base.files.atomic import write_text_atomically


def save_record(path: Path, key: str, content: Any) -> None:
    """Write ``content`` (JSON) under ``key``; the file is replaced in one step."""
    document = {"key": key, "sha256": _digest(content), "content": content}
    write_text_atomically(path, json.dumps(document, indent=1) + "\n")


def load_record(path: Path, key: str) -> Any | None:
    """The content that was saved under ``key``; None where the file is missing, damaged or of another key."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["key"] == key and document["sha256"] == _digest(document["content"]):
            return document["content"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
