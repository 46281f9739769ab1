"""A training that goes on after whatever ends its process: a file with all that is moved, and one that says how far.

What a step changes is in the file twice: it is read from one half, and written to the other. A step is finished when a
small second file is, which says which half is good, and has what is not moved: it replaces the one before by its name,
which the file system does at once or not at all. A step that is cut short has touched nothing of the half before it.
"""

from __future__ import annotations

import fcntl
import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monet.base.files.atomic import write_bytes_atomically
from monet.errors import ConfigError, ExecutionError
from monet.native.channel import TAKEN
from monet.plans.plan import Plan


def checkpoint_at(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint is. Raises ``ConfigError`` where none can be."""
    found = Path(path).resolve()
    if not found.parent.is_dir() or found.is_dir():
        raise ConfigError(f"checkpoint {found}: a file in a folder that is there is needed")
    if not os.access(found.parent, os.W_OK) or (found.exists() and not os.access(found, os.W_OK)):
        raise ConfigError(f"checkpoint {found}: it, or its folder, cannot be written to")
    if found.exists() and not head_of(found).exists() and not plan_path(found).exists():
        raise ConfigError(f"checkpoint {found}: there is a file that is no checkpoint; remove it, or name another one")
    return found


def head_of(path: Path) -> Path:
    """The small file beside a checkpoint."""
    return path.with_name(f"{path.name}.step")


def plan_path(path: Path) -> Path:
    """The plan beside a checkpoint."""
    return path.with_name(f"{path.name}.plan.json")


def plan_of(path: Path) -> Plan | None:
    """The plan of a checkpoint that training goes on from; None where there is none."""
    return Plan.load(plan_path(path)) if head_of(path).exists() and plan_path(path).exists() else None


@dataclass(frozen=True)
class Finished:
    """``steps``: how many were made. ``half``: which has what they left. ``tensors``: by name, what is not moved.
    ``groups``: of the optimiser, without their parameters. ``fresh``: updates that were not made yet. ``random``: the
    state of the generator."""

    steps: int
    half: int
    tensors: Mapping[str, torch.Tensor]
    groups: list[dict[str, Any]]
    fresh: list[str]
    random: torch.Tensor


class Checkpoint:
    """``path``: of the large file; the small one is beside it. ``described``: of the plan, what must be the same.
    ``alone``: nothing is moved, so that the large file is empty, and nobody else keeps others from it.

    Raises ``ExecutionError`` where another trainer has it.
    """

    def __init__(self, path: Path, described: Mapping[str, Any], *, alone: bool) -> None:
        self.path, self._described = path, dict(described)
        self._head = head_of(path)
        self._lock = path.open("ab") if alone else None
        if self._lock is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._lock.close()
                raise ExecutionError(f"checkpoint {path}: {TAKEN}") from error
            except OSError:  # a file system without locks
                self._lock.close()

    def last(self) -> Finished | None:
        """What the last finished step left; None where there is none. Raises ``ConfigError`` where that cannot be read,
        or is of another plan."""
        if not self._head.exists():
            return None
        try:
            found = torch.load(self._head, weights_only=True)
            described, finished = found.pop("described"), Finished(**found)
        except (OSError, RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            raise ConfigError(
                f"{self._head} cannot be read ({type(error).__name__}): it is no checkpoint of monet.optimize, or was "
                f"damaged. Begin a new one under another name, or remove it and {self.path.name}"
            ) from error
        differing = sorted(key for key, value in self._described.items() if described.get(key) != value)
        if differing:
            raise ConfigError(
                f"{self._head} is of another plan ({', '.join(differing)})"
                "; go on with the model and the plan that it was begun with, or begin a new checkpoint under another "
                "name"
            )
        return finished

    def finish(self, finished: Finished) -> None:
        """A step is made. Raises ``OSError`` where the disk does not take it."""
        content = io.BytesIO()
        torch.save({"described": self._described, **vars(finished)}, content)
        write_bytes_atomically(self._head, content.getvalue())
        folder = os.open(self._head.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
