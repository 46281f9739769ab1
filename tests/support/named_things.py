"""Whether what a document names is there: modules, their attributes, and files. Nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from repository import ROOT

GENERATED = {"build", "dist", "monet_planner.egg-info"}


def is_named_thing(name: str) -> bool:
    """Whether ``monet.a.b.C.d`` is a module, or an attribute of one: defined or imported there, or a class's own."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        file = _file_of(parts[:length])
        if file is not None:
            return _has(file, parts[length:])
    return False


def is_file(path: str) -> bool:
    """Whether the repository has this file or folder; a bare name is looked for in every folder."""
    return (ROOT / path).exists() or ("/" not in path and path in _file_names())


def documents() -> list[Path]:
    """Every Markdown file of the repository."""
    return sorted(path for path in _files() if path.suffix == ".md")


@cache
def _files() -> tuple[Path, ...]:
    return tuple(_walk(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in GENERATED or path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


@cache
def _file_names() -> frozenset[str]:
    return frozenset(path.name for path in _files())


def _file_of(parts: list[str]) -> Path | None:
    """The source of a module or package. The links in monet/ show ops, planner and executor where they are imported."""
    path = ROOT.joinpath(*parts)
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _has(file: Path, attributes: list[str]) -> bool:
    """Whether the module has the first attribute, that has the second, and so on."""
    if not attributes:
        return True
    first, *rest = attributes
    for node in _statements(_tree(file).body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if first == (alias.asname or alias.name) and node.module is not None:
                    return not node.module.startswith("monet") or is_named_thing(
                        ".".join((node.module, alias.name, *rest))
                    )
        elif isinstance(node, ast.ClassDef) and node.name == first:
            return not rest or rest[0] in _names(node.body)
        elif first in _names([node]):
            return not rest
    return False


def _names(body: list[ast.stmt]) -> set[str]:
    """What these statements define."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module, those under ``if`` and ``try`` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node.body)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())
