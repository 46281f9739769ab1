"""What ``DistributedDataParallel`` around a model means for a planned step inside of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from monet.plans.document import plan_text
from monet.plans.plan import Plan

logger = logging.getLogger(__name__)

ACCUMULATES = (
    "a step planned with accumulate=True adds to .grad itself, and DistributedDataParallel would never learn of its "
    "gradients; plan without accumulate"
)


def active() -> DistributedDataParallel | None:
    """The one whose forward pass is under way."""
    around: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()
    return around


def part_bytes() -> tuple[int, ...] | None:
    """The sizes at which it closes its buckets, the last of them for all further buckets; None outside of one."""
    around = active()
    if around is None:
        return None
    sizes = tuple(getattr(around, "bucket_bytes_cap_list", ()))
    if sizes:
        return sizes
    cap = int(around.bucket_bytes_cap)
    first: int = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]  # for it to begin early
    return (first if getattr(around, "bucket_bytes_cap_default", False) else cap, cap)


def gradient_bytes(model: torch.nn.Module) -> int:
    """Of the gradients of ``model`` that it reduces, which is what its buckets for them take; 0 outside of one."""
    around = active()
    if around is None:
        return 0
    reduced = {id(parameter) for parameter in around._module_parameters}
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad and id(p) in reduced)


def tell_uncounted(model: torch.nn.Module, plan: Plan) -> None:
    """Say, in a call inside of one, by how much its buckets take the peak above what ``plan`` promises."""
    beyond = gradient_bytes(model) - plan.fixed.get("buckets", 0) - plan.fixed.get("reserve", 0)
    if beyond > 0:
        logger.warning(
            "the buckets of DistributedDataParallel take %d bytes that the plan does not count, by which the peak is "
            "above the promise: plan with bucket_bytes=%d, or let monet.apply plan inside of DistributedDataParallel",
            beyond, gradient_bytes(model),
        )  # fmt: skip


def calls_surely(around: DistributedDataParallel, model: torch.nn.Module) -> bool:
    """Whether every process calls ``model``, a part of what is in ``around``, in its first step, so that none waits
    there for a word of one that never comes: each gradient is awaited unless parameters may be unused."""
    if around.module is model:
        return True
    return not (around.find_unused_parameters or around.static_graph) and gradient_bytes(model) > 0


def with_other_plans(group: Any, plans: Sequence[Plan]) -> list[int]:
    """The ranks of ``group``, all of which are in this, whose ``plans`` are not rank 0's."""
    found: list[Any] = [None] * dist.get_world_size(group)
    mine = [hashlib.sha256(plan_text(plan).encode()).hexdigest() for plan in plans]
    dist.all_gather_object(found, mine, group=group)
    return [rank for rank, theirs in enumerate(found) if theirs != found[0]]


def named(ranks: Sequence[int]) -> str:
    """``rank 1``, ``ranks 1, 3``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
