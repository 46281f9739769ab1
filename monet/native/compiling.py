"""Builds the project's small C++ files on first use, into a cache keyed by source, flags and processor."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from monet.base.files.cache import library_folder, require_private_library

logger = logging.getLogger(__name__)
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-ffp-contract=off")


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the first of g++, c++, clang++ on the path, else None."""
    chosen = os.environ.get("CXX")
    if chosen is not None:
        return shutil.which(chosen)
    return next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)


@cache
def _cpu_model() -> str:
    """A library built with ``-march=native`` must not be served to another processor from a shared cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())


def shared_library(
    source: Path, compile_flags: Sequence[str] = (), link_flags: Sequence[str] = (), include: Sequence[Path] = ()
) -> Path | None:
    """The shared library made from ``source`` with ``FLAGS`` and these, or None where it cannot be made. ``include``:
    folders of our own that it includes files of, beside its own folder.

    Without a compiler nothing is said: the caller knows what is lost. A failed build is logged with its reason.
    Raises ``CacheRefused`` where others could have changed the library.
    """
    cxx = compiler()
    if cxx is None:
        return None
    files = [source, *sorted(source.parent.glob("*.h"))]  # a header is beside what includes it
    files += [file for folder in include for file in sorted(folder.glob("*.h")) + sorted(folder.glob("*.cpp"))]
    compile_flags = [*compile_flags, *(f"-I{folder}" for folder in include)]
    texts = (*FLAGS, *compile_flags, *link_flags, _cpu_model(), cxx)
    parts = [*(file.read_bytes() for file in files), *(text.encode() for text in texts)]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    try:
        target = library_folder() / f"{source.stem}-{key}.so"
        if not target.exists():
            _compile(cxx, compile_flags, link_flags, source, target)
        require_private_library(target)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        logger.warning("%s could not be built by %s: %s", source.name, cxx, detail[-2000:])
        return None
    return target


def _compile(cxx: str, compile_flags: Sequence[str], link_flags: Sequence[str], source: Path, target: Path) -> None:
    """Compile and link in a temporary folder beside the target, then move into place (safe for several processes)."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unit, out = Path(folder) / "unit.o", Path(folder) / "unit.so"
        subprocess.run(
            [cxx, *FLAGS, *compile_flags, "-c", str(source), "-o", str(unit)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        subprocess.run(
            [cxx, "-shared", str(unit), "-o", str(out), *link_flags], check=True, capture_output=True, text=True
        )
        out.chmod(0o700)
        os.replace(out, target)
