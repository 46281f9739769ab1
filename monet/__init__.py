"""monet: plan what a PyTorch training step keeps, recomputes, and how, under a number of bytes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monet.api.capacity.asking import fit as fit
    from monet.api.functions import applied as applied
    from monet.api.functions import apply as apply
    from monet.api.functions import optimize as optimize
    from monet.api.functions import plan as plan
    from monet.api.functions import plan_many as plan_many
    from monet.api.functions import remove as remove
    from monet.api.guided import profile_guided as profile_guided
    from monet.api.in_place.bucket_padding import pad_to_buckets as pad_to_buckets
    from monet.errors import InfeasibleBudget as InfeasibleBudget
    from monet.errors import MonetError as MonetError
    from monet.executor.module import MonetModule as MonetModule
    from monet.executor.trainer import Trainer as Trainer
    from monet.plans.plan import Plan as Plan

# Loaded on first use: ``monet.planner`` must be importable without torch.
_HOMES = {
    "plan": "monet.api.functions",
    "plan_many": "monet.api.functions",
    "optimize": "monet.api.functions",
    "apply": "monet.api.functions",
    "applied": "monet.api.functions",
    "remove": "monet.api.functions",
    "pad_to_buckets": "monet.api.in_place.bucket_padding",
    "fit": "monet.api.capacity.asking",
    "MonetModule": "monet.executor.module",
    "Trainer": "monet.executor.trainer",
    "profile_guided": "monet.api.guided",
    "Plan": "monet.plans.plan",
    "InfeasibleBudget": "monet.errors",
    "MonetError": "monet.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'monet' has no attribute {name!r}")
