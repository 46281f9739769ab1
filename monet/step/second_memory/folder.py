"""Which folder a second memory lies in, and what is known of its disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from monet.base.files.cache import cache_folder
from monet.errors import ConfigError
from monet.native.channel import reason_against

ENVIRONMENT = "MONET_OFFLOAD"


def find_folder(folder: Path | None) -> Path:
    """``folder``, or one of monet's choice on a disk: of ``MONET_OFFLOAD``, the system's folder for temporary files,
    the cache and the working directory, the one with most room that will do.

    Raises ``ConfigError`` where it, or none of them, will.
    """
    if folder is not None:
        return _usable(folder)
    named = os.environ.get(ENVIRONMENT)
    if named:
        return _usable(Path(named))
    candidates = dict.fromkeys((Path(tempfile.gettempdir()), cache_folder(), Path.cwd()))
    reasons = []
    usable = []
    for candidate in candidates:
        try:
            usable.append(_usable(candidate))
        except ConfigError as error:
            reasons.append(str(error))
    if not usable:
        raise ConfigError("; ".join(reasons) + ". Name a folder on a disk: disk:FOLDER")
    return max(usable, key=lambda one: shutil.disk_usage(one).free)


def _usable(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    reason = reason_against(folder)
    if reason is not None:
        raise ConfigError(f"{folder} cannot hold a second memory: {reason}")
    return folder.resolve()


def check_room(folder: Path, size: int) -> None:
    """Raises ``ConfigError`` where the disk has less room than ``size`` bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ConfigError(
            f"the second memory needs {size:,} bytes in {folder}, {size - free:,} more than its disk has left; free "
            "some, give a limit (disk:FOLDER,limit=BYTES), or name another folder"
        )


def device_of(folder: Path) -> str:
    """Names the disk and its file system, for what was measured of it."""
    found = os.stat(folder).st_dev
    lines = Path("/proc/self/mountinfo").read_text().splitlines() if Path("/proc/self/mountinfo").exists() else []
    number = f"{os.major(found)}:{os.minor(found)}"
    kinds = {line.split()[2]: line.partition(" - ")[2].split()[:2] for line in lines}
    return " ".join((number, *kinds.get(number, ())))
