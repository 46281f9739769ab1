"""The layout of the packages: what is installed, and who may know whom beyond what import-linter checks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from repository import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("ops", "planner", "executor", "configs")
MOST_FILES = 21
"""In a folder; more are two subjects."""


def run_python(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def folders() -> Iterator[tuple[str, Path]]:
    """Every folder that is a package, by the name that it is installed under."""
    for top in ("monet", *FOLDERS):
        for path in [ROOT / top, *sorted((ROOT / top).rglob("*/"))]:
            parts = path.relative_to(ROOT / top).parts
            # The links inside monet/ show folders that are walked under their own names.
            if "__pycache__" not in parts and not (top == "monet" and parts and parts[0] in FOLDERS):
                yield ".".join(["monet", *(() if top == "monet" else (top,)), *parts]), path


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_let_tools_read_the_tree_as_it_is_imported(folder: str) -> None:
    link = ROOT / "monet" / folder
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / folder


def test_every_package_is_installed_under_monet() -> None:
    names = dict(folders())
    assert len(names) > 20
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == set(names)
    for name, path in names.items():
        assert (path / "__init__.py").is_file(), f"{name} has no docstring: make {path / '__init__.py'}"


def test_every_data_file_is_installed() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    for name, folder in folders():
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in {".py", ".pyc"}:
                assert any(path.match(pattern) for pattern in patterns.get(name, [])), path


def test_no_room_is_too_full() -> None:
    """A folder of code has about twenty files at most; configurations are a list."""
    for name, folder in folders():
        files = [path for path in folder.iterdir() if path.is_file()]
        assert name == "monet.configs" or len(files) <= MOST_FILES, f"{name} has {len(files)} files: divide it"


def test_importing_monet_does_not_import_torch(tmp_path: Path) -> None:
    modules = "monet, monet.errors, monet.models.config, monet.native.compiling, monet.cli.main"
    run_python(f"import sys, {modules}; assert 'torch' not in sys.modules", tmp_path)


def test_the_planner_runs_where_there_is_no_torch(tmp_path: Path) -> None:
    modules = [f"{name}.{path.stem}" for name, folder in folders() for path in folder.glob("*.py")]
    planner = [name for name in modules if name.startswith("monet.planner.") and not name.endswith("__init__")]
    assert "monet.planner.search.fastest" in planner
    blocked = (
        "import sys\nfor name in ('torch', 'monet.ops', 'monet.executor', 'monet.capture'): sys.modules[name] = None\n"
    )
    run_python(f"{blocked}import importlib\nfor name in {planner!r}: importlib.import_module(name)", tmp_path)


def test_a_users_own_ops_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("ops", "planner", "executor"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = {name!r}\n")
    run_python(
        "import ops, planner, executor, monet.ops, monet.planner, monet.executor\n"
        "assert (ops.MINE, planner.MINE, executor.MINE) == ('ops', 'planner', 'executor')\n"
        "assert not hasattr(monet.ops, 'MINE')",
        tmp_path,
    )


def test_the_verifier_shares_no_code_with_what_it_verifies() -> None:
    graph = grimp.build_graph("monet", exclude_type_checking_imports=True, cache_dir=None)
    known = graph.find_upstream_modules("monet.plans.verifier")
    own = {f"monet.plans.{name}" for name in ("copies", "document", "format", "plan", "sizes", "text")}
    # A plan's text shows bytes as people write them.
    assert known <= own | {"monet.base.amounts", "monet.errors", "monet.base.files", "monet.base.files.atomic"}


def test_packages_have_a_face_at_most() -> None:
    """No logic in ``__init__``: a docstring, and up to ten lines that hand an entry on."""
    for name, folder in folders():
        if name == "monet":
            continue  # its names are loaded on first use: that is its face
        lines = (folder / "__init__.py").read_text().split('"""', 2)[2].split("\n")
        face = [line for line in lines if line.strip()]
        assert len(face) <= 10 and all(line.startswith(("from ", "__all__")) for line in face), name
