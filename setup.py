"""The README as a package index shows it: none of its relative links leads anywhere there. All else: pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def described(readme: str, repository: str | None) -> str:
    """``readme`` with its links led into the ``repository`` (the address of a public one, as GitHub's); without one,
    links are their text, and pictures are left out."""

    def led(found: re.Match[str]) -> str:
        is_picture, text, path = found["picture"], found["text"], found["path"]
        if repository is None:
            return "" if is_picture else text
        return f"{is_picture}[{text}]({repository}/{'raw' if is_picture else 'blob'}/HEAD/{path})"

    led_text = re.sub(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<path>[^)]*)\)", led, readme)
    return re.sub(r"\n{3,}", "\n\n", led_text)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    setup(
        long_description=described((ROOT / "README.md").read_text(), project.get("urls", {}).get("Repository")),
        long_description_content_type="text/markdown",
    )
