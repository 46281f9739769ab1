"""What the code can say: every text in it, what is put in between written as its expression."""

from __future__ import annotations

import ast
from functools import cache

from repository import ROOT

FOLDERS = ("monet", "ops", "planner", "executor")


@cache
def texts_of_code() -> tuple[tuple[str, bool], ...]:
    """Texts, and whether a logger warns by them. Of an f-string the parts between braces are ``{name}``."""
    found: list[tuple[str, bool]] = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        warned = {id(text) for node in ast.walk(tree) for text in _warned(node)}
        found += [(text, id(node) in warned) for node in ast.walk(tree) if (text := _text(node)) is not None]
    return tuple(found)


def _warned(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warning":
        return [node.args[0]]
    return []


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue)
                       else _text(part) or "" for part in node.values)  # fmt: skip
    return None
