"""docs/when-something-goes-wrong.md has the messages that the code has: it goes by their parts."""

from __future__ import annotations

import re

from repository import ROOT
from texts_of_code import texts_of_code

from monet.errors import MonetError

PAGE = ROOT / "docs" / "when-something-goes-wrong.md"


def parts_by_heading() -> dict[str, list[str]]:
    """The first column of its tables."""
    sections = PAGE.read_text().split("\n## ")[1:]
    return {section.splitlines()[0]: re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE) for section in sections}


def test_every_class_of_errors_has_a_table() -> None:
    found = parts_by_heading()
    known = {cls.__name__ for cls in MonetError.__subclasses__() if cls.__module__ == MonetError.__module__}
    assert {*known, "Warnings"} == set(found)
    assert all(found.values())


def test_what_it_explains_is_said() -> None:
    said = [text for text, _ in texts_of_code()]
    stale = {part for parts in parts_by_heading().values() for part in parts if not any(part in text for text in said)}
    assert not stale, f"{PAGE.name} has messages that there are not: {sorted(stale)}"


def test_every_warning_is_explained() -> None:
    parts = parts_by_heading()["Warnings"]
    missing = [text for text, is_warning in texts_of_code() if is_warning and not any(part in text for part in parts)]
    assert not missing, f"{PAGE.name} does not have the warnings {missing}"
