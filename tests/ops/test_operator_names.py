"""The operators of aten that the code names are there, or known to be gone."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import torch
from repository import ROOT

GONE = {
    "cholesky.default": "torch 2.15 has linalg_cholesky_ex alone",
}
"""What some of the supported versions of PyTorch have no more: code asks ``hasattr`` before it names these."""


def _sources() -> Iterator[Path]:
    for folder in ("ops", "executor", "monet"):
        # The links inside monet/ show folders that are walked under their own names.
        yield from (path for path in (ROOT / folder).rglob("*.py") if not path.parent.is_symlink())


def _names(tree: ast.AST) -> Iterator[str]:
    """``relu`` of ``aten.relu`` and ``relu.default`` of ``aten.relu.default``; both of the second."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).removeprefix("torch.ops.").split(".")
            if parts[0] == "aten" and 2 <= len(parts) <= 3 and all(part.isidentifier() for part in parts):
                yield ".".join(parts[1:])


def _exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and (not overload or hasattr(found, overload))


def test_every_operator_that_is_named_exists() -> None:
    names = {name for path in _sources() for name in _names(ast.parse(path.read_text()))}
    assert len(names) > 250
    gone = GONE.keys() | {name.partition(".")[0] for name in GONE}
    assert {name for name in names if not _exists(name)} <= gone
    assert gone <= names, "nothing names it any more"


def test_what_is_gone_does_not_stop_anything() -> None:
    """Tables of operators are made when their files are imported."""
    for path in sorted((ROOT / "ops").rglob("*.py")):
        parts = path.relative_to(ROOT / "ops").with_suffix("").parts
        importlib.import_module(".".join(["monet", "ops", *(part for part in parts if part != "__init__")]))
