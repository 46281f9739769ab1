"""A prepared step with a second memory to move tensors to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from monet.base.amounts import format_bytes
from monet.errors import ConfigError
from monet.pipeline.preparation import Prepared
from monet.planner.problem import SecondMemory
from monet.step.second_memory.bandwidth import Bandwidth, bandwidth, host_bandwidth
from monet.step.second_memory.folder import device_of, find_folder
from monet.step.second_memory.offload import Offload
from monet.step.second_memory.streams import available_bytes, device_name

ROOM_SHARE = 0.9
"""Of what a disk has left: what a plan may take of it where no limit was given."""
HOST_SHARE = 0.5
"""Of the main memory that is left: what a plan may pin of it where no limit was given."""


def check_second_memory(offload: Offload | None, device: str | None = None) -> None:
    """Raises ``ConfigError`` where the second memory that is asked for will not do, before anything is measured.
    ``device``: the kind that the model is on, as far as that is known."""
    if offload is None:
        return
    if device is not None:
        offload.check_device(device)
    if offload.disk:
        _found(offload)


def _found(offload: Offload) -> tuple[Path, int]:
    """The folder, and how many bytes of its disk a plan may take."""
    folder = find_folder(offload.folder)
    free = shutil.disk_usage(folder).free
    return folder, _limit(offload, free, ROOM_SHARE, f"that the disk of {folder} has left", ", or another folder")


def _host_limit(offload: Offload) -> int:
    """How many bytes of main memory a plan may pin."""
    return _limit(offload, available_bytes(), HOST_SHARE, "of main memory that are left")


def _limit(offload: Offload, left_bytes: int, share: float, where: str, instead: str = "") -> int:
    """What was asked for, else a share of what is left. ``where``, ``instead``: for the error where that is less."""
    limit = int(share * left_bytes) if offload.limit_bytes is None else offload.limit_bytes
    if limit > left_bytes:
        raise ConfigError(
            f"the limit of {format_bytes(limit)} is more than the {format_bytes(left_bytes)} {where}; give a smaller "
            f"one{instead}"
        )
    return limit


def offloaded(prepared: Prepared, offload: Offload | None, *, cache: bool = True) -> Prepared:
    """``prepared`` with the second memory that was asked for, if one was; a disk, or the way to main memory, whose
    rates are not given is measured for some seconds, once.

    Raises ``ConfigError`` and ``ExecutionError`` where it will not do.
    """
    if offload is None:
        return prepared
    device = prepared.lowered.catalogue.graph.device
    offload.check_device(device.type)
    second, described = _described(offload, device, cache=cache)
    return _with_memory(prepared, second, described)


def _with_memory(prepared: Prepared, second: SecondMemory, described: dict[str, Any]) -> Prepared:
    """``described``: what the plan says of it beside what the planner is told."""
    described = {
        **described,
        "write_rate": second.write_rate,
        "read_rate": second.read_rate,
        "slowdown_s": second.slowdown_s,
        "mode": second.mode,
    }
    lowered = replace(prepared.lowered, problem=replace(prepared.problem, second=second))
    return replace(prepared, lowered=lowered, environment={**prepared.environment, "second_memory": described})


def at_rates(prepared: Prepared, offload: Offload, write_rate: float | None, read_rate: float | None) -> Prepared:
    """``prepared``, which has its second memory, with the rates that a step found (None: the known one) where
    ``offload`` gives none."""
    second = prepared.problem.second
    assert second is not None
    second = replace(
        second,
        write_rate=offload.write_rate or write_rate or second.write_rate,
        read_rate=offload.read_rate or read_rate or second.read_rate,
    )
    return _with_memory(prepared, second, prepared.environment["second_memory"])


def _described(offload: Offload, device: torch.device, *, cache: bool) -> tuple[SecondMemory, dict[str, Any]]:
    """What the planner is told, and what the plan says of the memory besides."""
    if not offload.is_here:
        return offload.assumed(), {"disk": False}
    measure: Callable[[], Bandwidth]
    if offload.disk:
        folder, limit = _found(offload)
        named = None if offload.folder is None else str(folder)
        described: dict[str, Any] = {"disk": True, "folder": named, "device": device_of(folder)}
        measure = partial(bandwidth, folder, cache=cache)
    else:
        limit = _host_limit(offload)
        described = {"disk": False, "host": True, "device": device_name(device)}
        measure = partial(host_bandwidth, device, cache=cache)
    limited = replace(offload, limit_bytes=limit)
    if offload.write_rate is not None and offload.read_rate is not None:
        return limited.assumed(), described
    measured = measure()
    second = limited.at(measured.write_rate, measured.read_rate, measured.slowdown_s)
    return second, {**described, "measured": measured.measured}
