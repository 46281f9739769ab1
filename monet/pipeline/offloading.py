"""A prepared step with a second memory to move tensors to."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from monet.amounts import format_bytes
from monet.errors import ConfigError
from monet.pipeline.preparation import Prepared
from monet.second_memory.bandwidth import bandwidth
from monet.second_memory.folder import device_of, find_folder
from monet.second_memory.offload import Offload

ROOM_SHARE = 0.9
"""Of what a disk has left: what a plan may take of it where no limit was given."""


def check_second_memory(offload: Offload | None) -> None:
    """Raises ``ConfigError`` where the second memory that is asked for will not do, before anything is measured."""
    if offload is not None and offload.disk:
        _found(offload)


def _found(offload: Offload) -> tuple[Path, int]:
    """The folder, and how many bytes of its disk a plan may take."""
    folder = find_folder(offload.folder)
    free = shutil.disk_usage(folder).free
    limit = int(ROOM_SHARE * free) if offload.limit_bytes is None else offload.limit_bytes
    if limit > free:
        raise ConfigError(
            f"the limit of {format_bytes(limit)} is more than the {format_bytes(free)} that the disk of {folder} has "
            "left; give a smaller one, or another folder"
        )
    return folder, limit


def offloaded(prepared: Prepared, offload: Offload | None, *, cache: bool = True) -> Prepared:
    """``prepared`` with the second memory that was asked for, if one was; a disk whose rates are not given is measured
    for some seconds, once.

    Raises ``ConfigError`` and ``ExecutionError`` where the folder will not do.
    """
    if offload is None:
        return prepared
    described: dict[str, Any] = {"disk": offload.disk}
    if offload.disk:
        folder, limit = _found(offload)
        described |= {"folder": None if offload.folder is None else str(folder), "device": device_of(folder)}
        limited = replace(offload, limit_bytes=limit)
        if offload.write_rate is not None and offload.read_rate is not None:
            second = limited.assumed()
        else:
            measured = bandwidth(folder, cache=cache)
            second = limited.at(measured.write_rate, measured.read_rate, measured.slowdown_s)
            described["measured"] = measured.measured
    else:
        second = offload.assumed()
    described |= {
        "write_rate": second.write_rate,
        "read_rate": second.read_rate,
        "slowdown_s": second.slowdown_s,
        "mode": second.mode,
    }
    lowered = replace(prepared.lowered, problem=replace(prepared.problem, second=second))
    return replace(prepared, lowered=lowered, environment={**prepared.environment, "second_memory": described})
