"""The measured peak of a planned step, in bytes, counted as a plan counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import nn

import monet
from monet.native import allocator
from monet.plans.plan import Plan


def held_bytes(model: nn.Module, constants: Iterable[torch.Tensor]) -> int:
    """What a step counts and is there already: parameters, buffers, constants, each memory once."""
    held = [*model.parameters(), *model.buffers(), *constants]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}.values())


def measured_peak_bytes(
    model: nn.Module,
    plan: Plan,
    inputs: Callable[[int], tuple[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]],
) -> int:
    """Of the second planned step, inputs and parameters included; what else lives in this process is left out."""
    module = monet.MonetModule(model, plan)
    gc.collect()
    other = allocator.live_bytes() - held_bytes(model, module._step.captured.constants.values())

    def step(seed: int) -> None:
        args, kwargs = inputs(seed)
        module.zero_grad(set_to_none=True)
        allocator.reset_peak()
        leaves = pytree.tree_leaves(module(*args, **kwargs))
        outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])

    step(0)
    step(1)
    peak = allocator.peak_bytes() - other
    module.zero_grad(set_to_none=True)
    return peak
