"""Names out of a file, as they may stand in a terminal, in XML and on a page."""

from __future__ import annotations


def plain(text: str) -> str:
    """``text`` with a mark in the place of everything that does not print: control characters, half surrogates."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
