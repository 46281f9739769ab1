"""monet: plan what a PyTorch training step keeps, recomputes, and how, under a number of bytes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monet.api import applied as applied
    from monet.api import apply as apply
    from monet.api import optimize as optimize
    from monet.api import plan as plan
    from monet.api import plan_many as plan_many
    from monet.api import remove as remove
    from monet.capacity.asking import fit as fit
    from monet.errors import InfeasibleBudget as InfeasibleBudget
    from monet.errors import MonetError as MonetError
    from monet.executor.module import MonetModule as MonetModule
    from monet.executor.trainer import Trainer as Trainer
    from monet.guided import profile_guided as profile_guided
    from monet.in_place.bucket_padding import pad_to_buckets as pad_to_buckets
    from monet.plans.plan import Plan as Plan

# Loaded on first use: ``monet.planner`` must be importable without torch.
_HOMES = {
    "plan": "monet.api",
    "plan_many": "monet.api",
    "optimize": "monet.api",
    "apply": "monet.api",
    "applied": "monet.api",
    "remove": "monet.api",
    "pad_to_buckets": "monet.in_place.bucket_padding",
    "fit": "monet.capacity.asking",
    "MonetModule": "monet.executor.module",
    "Trainer": "monet.executor.trainer",
    "profile_guided": "monet.guided",
    "Plan": "monet.plans.plan",
    "InfeasibleBudget": "monet.errors",
    "MonetError": "monet.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'monet' has no attribute {name!r}")
