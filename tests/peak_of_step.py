"""Run by a test in a process of its own: measured and promised peak of one planned step, in bytes."""

from __future__ import annotations

import gc
import sys

import torch
import torch.utils._pytree as pytree
from test_step import CASES, _model, _plan

import monet
from monet import allocator


def main(case: str) -> None:
    assert allocator.available()
    model, make = _model(case), CASES[case][1]
    plan = _plan(case, "95%" if case == "residual" else "10GB").plan
    module = monet.MonetModule(model, plan)
    gc.collect()
    # What the step counts and is there already: parameters, buffers, constants, each memory once.
    held = [*model.parameters(), *model.buffers(), *module._step.captured.constants.values()]
    counted = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}.values())
    other = allocator.live_bytes() - counted

    def step(seed: int) -> None:
        args, kwargs = make(seed)
        module.zero_grad(set_to_none=True)
        allocator.reset_peak()
        leaves = pytree.tree_leaves(module(*args, **kwargs))
        outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])

    step(0)
    step(1)
    print(allocator.peak_bytes() - other, plan.peak_bytes)


if __name__ == "__main__":
    main(sys.argv[1])
