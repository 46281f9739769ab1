"""Builds the project's small C++ files on first use, into a cache keyed by source, flags and processor."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from monet.base.files.cache import cache_fails, folder_of_process, library_folder, require_private_library

logger = logging.getLogger(__name__)
NO_SPACE = "No space left on device"
"""What a compiler says, too."""
_OPTIMISED = ("-O2", "-ftree-vectorize", "-fvect-cost-model")
"""Kernels are as fast as by ``-O3``, and compiled in half of the time. Without the last, g++ at -O2 vectorises no loop
whose length it does not know; clang, which does, ignores it (but not ``=dynamic``)."""
FLAGS = ("-std=c++20", *_OPTIMISED, "-march=native", "-fPIC", "-fno-math-errno", "-ffp-contract=off")


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
    name = f"{source.stem}-{key}"

    def built(folder: Path) -> Path:
        target = _whole(folder, name)
        if target is None:
            with _locked(folder / f"{name}.lock") as lock:  # two first starts compile once
                target = _whole(folder, name) or _compile(cxx, compile_flags, link_flags, source, folder, name, lock)
        require_private_library(target)
        return target

    try:
        folder = library_folder()
        try:
            return built(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            if not _is_of_the_disk(error) or folder == folder_of_process():
                raise
            cache_fails(error if isinstance(error, OSError) else OSError(NO_SPACE))
            return built(folder_of_process())
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        logger.warning("%s could not be built by %s: %s", source.name, cxx, detail[-2000:])
        return None


def _is_of_the_disk(error: OSError | subprocess.CalledProcessError) -> bool:
    """Whether another folder may do: the cache's is full, may only be read, or knows no locks."""
    return isinstance(error, OSError) or NO_SPACE in (error.stderr or "")


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Waits for other processes that are at the same library; gives the file that holds the lock."""
    with path.open("a") as file:
        path.chmod(0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _whole(folder: Path, name: str) -> Path | None:
    """The library that was built, if it is as it was written: one that was cut short, by a full disk or a crash, would
    end the process that loads it. Its name has a digest of its content; others are removed."""
    for path in folder.glob(f"{name}-*.so"):
        require_private_library(path)
        if path.stem.rpartition("-")[2] == _digest(path):
            return path
        logger.warning("%s is damaged, and is built again", path)
        path.unlink()
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _remove_abandoned(folder: Path) -> None:
    """What killed processes have left of other libraries: nobody has their locks."""
    for work in folder.glob("*.build"):
        with (folder / f"{work.stem}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(work, ignore_errors=True)


def _compile(
    cxx: str, compile_flags: Sequence[str], link_flags: Sequence[str], source: Path, folder: Path, name: str, lock: int
) -> Path:
    """Compile and link in a folder beside the target, then move into place. Of that folder, what a process has left
    that was killed is removed first: whoever has the lock is alone. The compiler has it, too: it may outlive the
    process."""
    work = folder / f"{name}.build"
    shutil.rmtree(work, ignore_errors=True)
    _remove_abandoned(folder)
    work.mkdir(mode=0o700)
    try:
        unit, out = work / "unit.o", work / "unit.so"
        subprocess.run(
            [cxx, *FLAGS, *compile_flags, "-c", str(source), "-o", str(unit)],
            check=True, capture_output=True, text=True, pass_fds=(lock,),
        )  # fmt: skip
        subprocess.run(
            [cxx, "-shared", str(unit), "-o", str(out), *link_flags],
            check=True, capture_output=True, text=True, pass_fds=(lock,),
        )  # fmt: skip
        out.chmod(0o700)
        with out.open("rb") as file:
            os.fsync(file.fileno())
        target = folder / f"{name}-{_digest(out)}.so"
        os.replace(out, target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)
