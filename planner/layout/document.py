"""Buffers to lay out, read from CSV: ``id,lower,upper,size``, and if wanted ``offset`` and ``gaps``.

A buffer of ``size`` bytes is alive in the half-open [lower, upper). ``offset``: where it must lie, or empty.
``gaps``: stretches in which it is not alive, as ``3-5 8-9``.
"""

from __future__ import annotations

import csv
from pathlib import Path

from monet.errors import ConfigError
from monet.planner.layout.arena import Lifetime

COLUMNS = ("id", "lower", "upper", "size")


def load_lifetimes(path: Path) -> list[Lifetime]:
    """The buffers in ``path``. Raises ``ConfigError``: the file cannot be read, or a line is not as described."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a mark
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"{path} has no column {', '.join(missing)}; it needs {','.join(COLUMNS)}")
            return [_lifetime(path, reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file: {error}") from error


def _lifetime(path: Path, line: int, row: dict[str, str | None]) -> Lifetime:
    def number(name: str, text: str | None) -> int:
        try:
            return int(text or "")
        except ValueError:
            raise ConfigError(f"{path}:{line}: {name} is {text!r}, not a whole number") from None

    offset = row.get("offset")
    gaps = []
    for text in (row.get("gaps") or "").split():
        begin, _, end = text.partition("-")
        gaps.append((number("gaps", begin), number("gaps", end)))
    return Lifetime(
        id=number("id", row["id"]),
        bytes=number("size", row["size"]),
        begin=number("lower", row["lower"]),
        end=number("upper", row["upper"]),
        gaps=tuple(gaps),
        offset=number("offset", offset) if offset else None,
    )
