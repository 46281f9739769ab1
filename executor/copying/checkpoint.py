"""A training that goes on after whatever ends its process: a file with all that is moved, and one that says how far.

What a step changes is in the file twice: it is read from one half, and written to the other. A step is finished when a
small second file is, which says which half is good, and has what is not moved: it replaces the one before by its name,
which the file system does at once or not at all. A step that is cut short has touched nothing of the half before it.

The small file is there from the beginning, and says until the first step that there is none yet: so a large file or a
plan without it is somebody else's, or has lost it, and is never written to.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from monet.base.files.atomic import force_out, remove_leftovers, write_bytes_atomically, written_atomically
from monet.base.files.lock import FileLock
from monet.errors import ConfigError, ExecutionError
from monet.plans.plan import Plan

_NO_STEP = b"monet: a training of which no step is made yet\n"
_MARK = b"monet step, form 2, crc "  # then 8 hexadecimal digits: the end of a small file with a step
_END_BYTES = len(_MARK) + 8
_CHUNK = 1 << 20  # bytes that are read at a time
_NAME_MAX = 255  # bytes of a file's name, where the file system does not tell


def checkpoint_at(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint is. Raises ``ConfigError`` where none can be."""
    named = os.fsdecode(path)
    if "\0" in named:
        raise ConfigError(f"checkpoint {named!r}: a file's name cannot have the character NUL")
    found = Path(os.path.realpath(named))  # as Path.resolve, but that a circle of links is no error
    is_other = os.path.lexists(found) and not os.path.isfile(found)
    if not os.path.isdir(found.parent) or is_other:
        raise ConfigError(f"checkpoint {found}: a file in a folder that is there is needed")
    longest, most = os.fsencode(f"{plan_path(found).name}.tmp01234567"), os.pathconf(found.parent, "PC_NAME_MAX")
    if len(longest) > (most if most > 0 else _NAME_MAX):
        raise ConfigError(f"checkpoint {found}: the name is too long for the files beside it ({plan_path(found).name})")
    if not os.access(found.parent, os.W_OK) or (found.exists() and not os.access(found, os.W_OK)):
        raise ConfigError(f"checkpoint {found}: it, or its folder, cannot be written to")
    check_files(found)
    return found


def check_files(path: Path) -> None:
    """Raises ``ConfigError`` where what is there is no checkpoint: nothing of it may be lost, and no training that has
    lost its small file begins anew unasked. An empty file alone is one whose process ended as it had made it."""
    if os.path.lexists(head_of(path)):
        has_step(path)
        return
    has_content = path.exists() and path.stat().st_size > 0
    if has_content or plan_path(path).exists():
        there = [found.name for found in (path, plan_path(path)) if found.exists()]
        raise ConfigError(
            f"checkpoint {path}: there is a file that is no checkpoint, or one that has lost its {head_of(path).name}; "
            f"remove {' and '.join(there)}, or name another one"
        )


def head_of(path: Path) -> Path:
    """The small file beside a checkpoint."""
    return path.with_name(f"{path.name}.step")


def plan_path(path: Path) -> Path:
    """The plan beside a checkpoint."""
    return path.with_name(f"{path.name}.plan.json")


def has_step(path: Path) -> bool:
    """Whether training goes on from a checkpoint. Raises ``ConfigError`` where its small file is another program's, or
    was cut short."""
    if not os.path.lexists(head_of(path)):
        return False
    end = _end_of(path, max(_END_BYTES, len(_NO_STEP) + 1))
    if end != _NO_STEP and not end[:-8].endswith(_MARK):
        raise _unreadable(path, "it does not end as one of this version does")
    return end != _NO_STEP


def _end_of(path: Path, count: int) -> bytes:
    """So many bytes of its small file, or all."""
    try:
        with head_of(path).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - count, 0))
            return file.read()
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error


def plan_of(path: Path) -> Plan | None:
    """The plan of a checkpoint that training goes on from; None where there is none."""
    return Plan.load(plan_path(path)) if has_step(path) and plan_path(path).exists() else None


def _unreadable(path: Path, why: str) -> ConfigError:
    head = head_of(path)
    return ConfigError(
        f"{head} cannot be read ({why}): it is no checkpoint of monet.optimize, an older monet's, or was damaged. "
        f"Begin a new one under another name, or remove it, {path.name} and {plan_path(path).name}"
    )


@dataclass(frozen=True)
class Group:
    """Of the optimiser: the names of its parameters, and its settings."""

    names: list[str]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """``described``: of the plan, what must be the same. ``steps``: how many were made. ``half``: which has what they
    left. ``tensors``: by name, what is not moved of model and loss. ``state``: the same of the optimiser, by parameter
    and key. ``fresh``: updates that were not made yet. ``random``: the state of the generator."""

    described: Mapping[str, Any]
    steps: int
    half: int
    tensors: Mapping[str, torch.Tensor]
    state: Mapping[str, Mapping[str, torch.Tensor]]
    groups: list[Group]
    fresh: list[str]
    random: torch.Tensor


class Checkpoint:
    """``path``: of the large file, which is this process's as long as this object, or a tensor that lies in the file,
    is there; it is empty where nothing is moved. The small one is beside it. ``lock``: of the large one.

    Raises ``ExecutionError`` where another trainer has it, ``ConfigError`` where it is none.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._head = path, head_of(path)
        check_files(path)
        self._is_new_file = not path.exists()
        try:
            self.lock = FileLock(path)
        except OSError as error:
            raise ExecutionError(f"the checkpoint {path} cannot be written: {error}") from error
        if self.lock.exclusive:
            remove_leftovers(self._head)
            remove_leftovers(plan_path(path))

    def begin(self) -> None:
        """Whatever there is without a step is another training's, perhaps by another plan."""
        if self.has_step:
            return
        try:
            write_bytes_atomically(self._head, _NO_STEP)
            self.lock.empty()
        except OSError as error:
            raise ExecutionError(f"the checkpoint {self.path} cannot be written: {error}") from error

    @property
    def has_step(self) -> bool:
        """Whether training goes on from it."""
        return has_step(self.path)

    def check_bytes(self, count: int) -> None:
        """Raises ``ConfigError`` where steps were made, and the large file is not of this size."""
        size = self.path.stat().st_size
        if self.has_step and size != count:
            raise ConfigError(
                f"{self.path} has not the {count:,} bytes of this plan: it was cut short, is gone, or is another "
                "plan's. Begin a new checkpoint under another name"
            )

    def keep_plan(self, plan: Plan) -> None:
        """Before the first step: other processes go on by this plan."""
        if self.has_step and plan_path(self.path).exists():
            return
        try:
            plan.save(plan_path(self.path))
        except OSError as error:
            raise ExecutionError(f"the checkpoint {self.path} cannot be written: {error}") from error

    def give_up(self) -> None:
        """No trainer was made: what this process has made is removed, but for steps."""
        if self.lock.is_closed or not self.lock.is_there:
            return
        if not self.has_step:  # in this order: what a kill leaves can be begun anew
            plan_path(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self._head.unlink(missing_ok=True)
        elif self._is_new_file:
            self.path.unlink(missing_ok=True)

    def last(self, described: Mapping[str, Any]) -> Finished | None:
        """What the last finished step left; None where there is none. ``described``: as of ``Finished``. Tensors may
        lie in the file. Raises ``ConfigError`` where that cannot be read, or is of another plan; ``ExecutionError``
        where the files are another training's by now."""
        self._check_there()
        if not self.has_step:
            return None
        self._check_sum()
        finished = self._loaded()
        differing = sorted(key for key, value in described.items() if finished.described.get(key) != value)
        if differing:
            raise ConfigError(
                f"{self._head} is of another plan ({', '.join(differing)})"
                "; go on with the model and the plan that it was begun with, or begin a new checkpoint under another "
                "name"
            )
        return finished

    def _check_there(self) -> None:
        if self.lock.is_closed:
            raise ExecutionError(f"the checkpoint {self.path} belongs to the process that this one was forked from")
        if not self.lock.is_there:
            raise ExecutionError(
                "the checkpoint of this training is gone: its files were removed, and what may be there by now is "
                "another training's; begin anew"
            )

    def _check_sum(self) -> None:
        try:
            found = self._summed()
        except OSError as error:
            raise _unreadable(self.path, str(error.strerror)) from error
        if _end_of(self.path, _END_BYTES) != _MARK + b"%08x" % found:
            raise _unreadable(self.path, "its checksum does not match")

    def _summed(self) -> int:
        """The checksum of the small file, but for its end."""
        checksum, left = 0, self._head.stat().st_size - _END_BYTES
        with self._head.open("rb") as file:
            while left > 0 and (read := file.read(min(left, _CHUNK))):
                checksum, left = zlib.crc32(read, checksum), left - len(read)
        return checksum

    def _loaded(self) -> Finished:
        try:
            # Mapped: not all of it is in memory beside what it is copied to.
            found = torch.load(self._head, weights_only=True, mmap=True)
            groups = [Group(**group) for group in found.pop("groups")]
            return Finished(groups=groups, **found)
        except Exception as error:  # whatever torch's reader meets in a file that is not its own
            raise _unreadable(self.path, type(error).__name__) from error

    def finish(self, finished: Finished) -> None:
        """A step is made. Raises ``OSError`` where the disk does not take it, and ``ExecutionError`` where the files
        were removed."""
        self._check_there()
        content = vars(finished) | {"groups": [vars(group) for group in finished.groups]}
        with written_atomically(self._head) as file:
            summed = _Summed(file)
            torch.save(content, cast(IO[bytes], summed))
            summed.end()
            # Once more, after what takes time and right before the file is replaced, which may be another's by now.
            self._check_there()
        folder = os.open(self._head.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _Summed:
    """A file to write to, and the checksum of what was written.

    CRC-32 finds whatever changes up to 32 bits in a row, and takes a tenth of the time of writing: 2 GB/s on one core,
    where SHA-256 without a processor's own instructions has 0.3.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._checksum = file, 0
        self._error: BaseException | None = None

    def write(self, content: bytes | memoryview) -> int:
        # torch's C++ calls this and may make another error of one raised here: it is raised at the end.
        try:
            if self._error is None:
                self._checksum = zlib.crc32(content, self._checksum)
                self._file.write(content)
        except BaseException as error:
            self._error = error
        return len(content)

    def flush(self) -> None:
        """Done at the end."""

    def end(self) -> None:
        """What was written is on the disk. Raises what a write has."""
        if self._error is not None:
            raise self._error
        self._file.write(_MARK + b"%08x" % self._checksum)
        force_out(self._file)


@contextmanager
def opened(path: Path) -> Iterator[Checkpoint]:
    """A checkpoint that a trainer is made of inside of this: nothing of it stays where that fails."""
    checkpoint = Checkpoint(path)
    try:
        checkpoint.begin()
        yield checkpoint
    except BaseException:
        checkpoint.give_up()
        raise
