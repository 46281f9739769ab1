"""The layout of the packages: what is installed, and who may know whom beyond what import-linter checks."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = ("ops", "planner", "executor", "configs")


def run_python(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_let_tools_read_the_tree_as_it_is_imported(folder: str) -> None:
    link = ROOT / "monet" / folder
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / folder


def test_every_package_is_installed_under_monet() -> None:
    found = {"monet", "monet.commands", "monet.sweep", *(f"monet.{folder}" for folder in FOLDERS)}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found
    for folder in ("monet", *FOLDERS):
        for path in (ROOT / folder).iterdir():
            if path.is_dir() and not path.is_symlink() and path.name != "__pycache__":
                assert f"{folder}.{path.name}" in found, f"name {path} in pyproject.toml"


def test_every_data_file_is_installed() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]
    for folder in ("monet", *FOLDERS):
        package = folder if folder == "monet" else f"monet.{folder}"
        for path in (ROOT / folder).iterdir():
            if path.is_file() and path.suffix not in {".py", ".pyc"}:
                assert any(path.match(pattern) for pattern in patterns.get(package, [])), path


def test_importing_monet_does_not_import_torch(tmp_path: Path) -> None:
    run_python("import sys, monet, monet.errors, monet.config, monet.cli; assert 'torch' not in sys.modules", tmp_path)


def test_the_planner_runs_where_there_is_no_torch(tmp_path: Path) -> None:
    modules = [f"monet.planner.{path.stem}" for path in (ROOT / "planner").glob("*.py") if path.stem != "__init__"]
    blocked = "import sys\nfor name in ('torch', 'monet.ops', 'monet.executor'): sys.modules[name] = None\n"
    run_python(f"{blocked}import importlib\nfor name in {modules!r}: importlib.import_module(name)", tmp_path)


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
    known = graph.find_upstream_modules("monet.planner.verify")
    assert known <= {"monet.atomic_file", "monet.errors", "monet.planfile"}
