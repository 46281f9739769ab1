"""What a plan's copies to a second memory and back go through; the generated code issues them and waits for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from monet.base.graph import Value
from monet.errors import PlanMismatch
from monet.executor.copying.checkpoint import Checkpoint
from monet.executor.copying.disk_copies import DiskCopies
from monet.executor.copying.host_copies import HostCopies
from monet.native.channel import Channel
from monet.plans.format import READ, WRITE, PlanStep, whole_blocks
from monet.plans.plan import Plan
from monet.step.second_memory.folder import check_room, device_of, find_folder
from monet.step.second_memory.streams import CopyStreams, check_host_room, device_name, pinned, released
from monet.step.second_memory.waits import Waits


class Copies(Protocol):
    """Places are bytes from the beginning of the second memory; each has one copy under way at most, and a ``wait`` is
    about that one. ``carried``, ``lost``: as of ``DiskCopies``."""

    @property
    def waits(self) -> Waits: ...

    @property
    def carried(self) -> Mapping[int, str]: ...

    @property
    def lost(self) -> set[str]: ...

    def check_process(self) -> None: ...

    def write(self, tensor: torch.Tensor, place: int, size: int) -> None: ...

    def read(self, value: Value, place: int, size: int) -> torch.Tensor: ...

    def wait(self, place: int) -> None: ...

    def settle(self) -> None: ...


def copies_of(
    plan: Plan, inside: Callable[[int], bool], device: torch.device, checkpoint: Checkpoint | None = None
) -> Copies | None:
    """What a plan's copies go through; None where it has none. ``inside``: as for ``DiskCopies``. ``checkpoint``: a
    file that stays, in which what is carried from step to step, if anything, is there twice.

    Raises ``PlanMismatch`` where the plan was made for another disk or GPU, or for rates alone; ``ConfigError`` and
    ``ExecutionError`` where the second memory cannot be had.
    """
    if plan.second_bytes == 0:
        return None
    described: Mapping[str, Any] = plan.environment.get("second_memory", {})
    if described.get("disk"):
        return _on_disk(plan, described, inside, checkpoint)
    if described.get("host"):
        return _in_main_memory(plan, described, device)
    raise PlanMismatch(
        "the plan moves tensors to a second memory of which only the rates are known (--offload bandwidth=…): it "
        "can be looked at, not run. Plan with --offload disk, or host for a model on a GPU"
    )


def _on_disk(
    plan: Plan, described: Mapping[str, Any], inside: Callable[[int], bool], checkpoint: Checkpoint | None
) -> DiskCopies:
    named = described.get("folder") if checkpoint is None else checkpoint.path.parent
    folder = find_folder(None if named is None else Path(named))
    device = device_of(folder)
    if described.get("device") not in (None, device):
        raise PlanMismatch(
            f"the plan's copies were timed for the disk [{described['device']}], and {folder} lies on [{device}]; plan "
            "again, or name a folder on that disk"
        )
    carried = carried_storages(plan)
    if checkpoint is None or not carried:
        check_room(folder, plan.second_bytes)
        return DiskCopies(Channel(folder, plan.second_bytes), inside, carried=carried)
    size = 2 * plan.second_bytes
    checkpoint.check_bytes(whole_blocks(size))
    check_room(folder, size - checkpoint.path.stat().st_size)
    written = frozenset(s.place for s in plan.steps if s.kind == WRITE and s.place is not None) & carried.keys()
    channel = Channel(folder, size, lock=checkpoint.lock)
    return DiskCopies(channel, inside, carried=carried, rewritten=written, half_bytes=plan.second_bytes)


def _in_main_memory(plan: Plan, described: Mapping[str, Any], device: torch.device) -> HostCopies:
    name = device_name(device)
    if described.get("device") not in (None, name):
        raise PlanMismatch(
            f"the plan's copies were timed for [{described['device']}], and this is [{name}]; plan again"
        )
    check_host_room(plan.second_bytes)
    streams, memory = CopyStreams(device), pinned(plan.second_bytes)
    copies = HostCopies(streams, memory)
    # At the end of the process, CUDA gives everything back by itself.
    weakref.finalize(copies, _given_back, streams, memory).atexit = False
    return copies


def _given_back(streams: CopyStreams, memory: torch.Tensor) -> None:
    streams.settle()
    released(memory)


def carried_storages(plan: Plan) -> dict[int, str]:
    """By place, what is in the second memory when a step begins: the first copy of its place reads it."""
    first: dict[int, PlanStep] = {}
    for step in plan.steps:
        if step.kind in (WRITE, READ) and step.place is not None:
            first.setdefault(step.place, step)
    return {place: step.node for place, step in first.items() if step.kind == READ}
