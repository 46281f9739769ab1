"""Builds wheel and sdist, installs each into a fresh environment, and uses it with no source tree in sight: plans,
runs, shows, and uninstalls. Needs the package index.

python tests/support/package_check.py [TORCH ...] [--python PYTHON ...]

TORCH such as torch==2.11.0; without, what constraints.txt names. PYTHON: the interpreters of the environments; without,
the one that runs this.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from repository import ROOT

LINKED = ("ops", "planner", "executor", "configs")
"""Folders of the repository that are packages of monet."""

TRAIN = """
import torch
import monet
from monet.models.examples import tiny_resnet

assert "site-packages" in monet.__file__, monet.__file__
for name in ("ops", "planner", "executor", "tests"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is installed as a package of its own")
torch.manual_seed(0)
model, images = tiny_resnet(), torch.randn(8, 3, 32, 32)
plan = monet.Plan.load("tiny.plan.json")
planned = monet.MonetModule(model, plan)
planned(images).sum().backward()
mine = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
model.zero_grad()
model(images).sum().backward()
for name, parameter in model.named_parameters():
    torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-3, atol=1e-4)
print("gradients are eager's; torch", torch.__version__)
"""


def _call(
    command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], status: int = 0, says: str = ""
) -> None:
    """Runs ``command`` and shows it. Exits where it ends with another status, or does not say what it should."""
    shown = " ".join(Path(part).name if Path(part).is_absolute() else str(part) for part in command)
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    good = done.returncode == status and says in output and "Traceback" not in output
    print(f"{'ok   ' if good else 'WRONG'} {shown[:110]}", flush=True)
    if not good:
        sys.exit(f"{output}\nstatus {done.returncode}, not {status}; or without {says!r}")


def _require_complete(archive: Path) -> None:
    """Exits where a file of the packages is not in the wheel, or its description is not what an index should show."""
    listed = subprocess.check_output(["git", "ls-files", "monet", *LINKED], cwd=ROOT, text=True).splitlines()
    wanted = {f"monet/{name}" if name.split("/")[0] in LINKED else name for name in listed}
    with zipfile.ZipFile(archive) as wheel:
        found = set(wheel.namelist())
        about = next(name for name in found if name.endswith(".dist-info/METADATA"))
        description = wheel.read(about).decode()
    missing = sorted(name for name in wanted - found if not (ROOT / name).is_symlink())
    others = sorted(name for name in found - wanted if ".dist-info/" not in name)
    if missing or others:
        sys.exit(f"missing from {archive.name}: {missing}; not in the repository: {others}")
    if "measures the operators" not in description or "](docs/" in description:
        sys.exit(f"the description of {archive.name} is not the README as an index shows it")


def _use(artefact: Path, python: str, torch: str | None, work: Path) -> None:
    """Installs, plans, runs, shows and uninstalls in a new environment under ``work``."""
    work.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MONET_CACHE")}
    environment = {**kept, "MONET_CACHE": str(work / "cache")}
    bins = work / "venv" / "bin"
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    lines = [line for line in constraints if torch is None or not line.startswith("torch")]
    (work / "constraints.txt").write_text("\n".join([*lines, *([torch] if torch else [])]) + "\n")
    _call([python, "-m", "venv", "venv"], work, environment)
    _call([bins / "python", "--version"], work, environment)
    _call([bins / "pip", "install", "-q", "-c", "constraints.txt", artefact], work, environment)
    _call([bins / "monet", "--version"], work, environment)
    plan: list[str | Path] = [bins / "monet-plan", "--budget", "85%", "tiny.yaml", "-o", "tiny.plan.json"]
    _call(plan, work, environment, says="tiny.plan.json")
    _call([bins / "monet", "show", "tiny.plan.json"], work, environment)
    (work / "train.py").write_text(TRAIN)
    _call([bins / "python", "train.py"], work, environment, says="gradients are eager's")
    # Without an extra: a sentence, not a traceback.
    _call([bins / "monet", "plan", "gpt2.yaml", "--budget", "4GB"], work, environment, 2, says="transformers")
    _without_compiler(plan, work, environment)
    _call([bins / "pip", "uninstall", "-q", "-y", "monet-planner"], work, environment)
    left = list((work / "venv" / "lib").glob("python*/site-packages/monet*"))
    if any(path.is_file() or any(part.suffix != ".pyc" for part in path.rglob("*.*")) for path in left):
        sys.exit(f"left after pip uninstall: {left}")
    shutil.rmtree(work)  # with a PyTorch of some gigabytes


def _without_compiler(plan: list[str | Path], work: Path, environment: Mapping[str, str]) -> None:
    found = {"PATH": str(work / "venv" / "bin"), "MONET_CACHE": str(work / "other cache")}
    without = {**{name: value for name, value in environment.items() if name not in ("CC", "CXX")}, **found}
    _call([*plan[:-1], "without.plan.json"], work, without, says="compiler")


def main(torches: Sequence[str], pythons: Sequence[str]) -> None:
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
        built = Path(folder) / "dist"
        _call([sys.executable, "-m", "build", "--outdir", built, copy], Path(folder), os.environ)
        shutil.rmtree(copy)
        (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
        _require_complete(wheel)
        with tarfile.open(sdist) as archive:
            print(f"{wheel.name}, {sdist.name}: {len(archive.getnames())} entries", flush=True)
        for python in pythons or [sys.executable]:
            for torch in (*torches,) or (None,):
                for artefact in (wheel, sdist):
                    print(f"{artefact.name}, {python}, {torch or 'torch of constraints.txt'}", flush=True)
                    _use(artefact, python, torch, Path(folder) / "work")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torches", nargs="*", metavar="TORCH")
    parser.add_argument("--python", action="append", default=[], dest="pythons")
    given = parser.parse_args()
    main(given.torches, given.pythons)
