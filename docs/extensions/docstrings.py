"""Docstrings on the API page: one that is missing fails the build.

Fields of a dataclass are described by the docstring of their class and left out.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

_DESCRIBED_BY_THEIR_CLASS = {"attribute", "data"}
_PLURAL = re.compile(r"(?<=\w)``(?=\w)")
"""The end of a literal right before a letter, as in ``Plan``s: reStructuredText wants a mark between the two."""


def _leave_fields_out(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Skip what has no docstring of its own to show: neither code nor a property."""
    is_code = callable(member) or isinstance(member, property | classmethod | staticmethod)
    return None if is_code else True


def _read(app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    if what not in _DESCRIBED_BY_THEIR_CLASS and not any(line.strip() for line in lines):
        logger.warning("%s %s is public and has no docstring", what, name, type="monet", subtype="docstring")
    lines[:] = [_PLURAL.sub(r"``\\ ", line) for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-skip-member", _leave_fields_out)
    app.connect("autodoc-process-docstring", _read)
    return {"parallel_read_safe": True}
