"""Run by a test in a process of its own: measured and promised peak of a step as people train, in bytes.

``module``: forward, backward from ones of every output. ``loss``: backward from the usage's own loss, an output of the
model. ``accumulate``: three batches without setting gradients to None. ``trainer``: a whole step.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from peak_meter import held_bytes
from usage_cases import HASTE, USAGES, Usage, optimizer_of, prepared_usage, smallest_plan

import monet
from monet.native import allocator
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare_whole
from monet.step.training_step.whole_step import capture_whole_step


def _own(call: Any) -> Any:
    """Each input with memory of its own, as the plan counts it."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), call)


def module_peaks(usage: Usage, kind: str) -> tuple[list[int], int]:
    prepared = prepared_usage(usage, accumulate=kind == "accumulate", exact=False)
    plan = plan_prepared(prepared, "10GB", HASTE).plan if kind == "loss" else smallest_plan(prepared)
    del prepared
    model = usage.model()
    module = monet.MonetModule(model, plan)
    gc.collect()
    other = allocator.live_bytes() - held_bytes(model, module._step.captured.constants.values())

    def step(seed: int) -> int:
        if kind != "accumulate":
            module.zero_grad(set_to_none=True)
        args, kwargs = _own(usage.inputs(seed))
        allocator.reset_peak()
        with usage.precision():
            result = module(*args, **kwargs)
        if kind == "loss":
            usage.loss(result).backward()
        else:
            leaves = pytree.tree_leaves(result)
            outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        return allocator.peak_bytes() - other

    return [step(seed) for seed in range(3)], plan.peak_bytes


def trainer_peaks(usage: Usage) -> tuple[list[int], int]:
    model = usage.model()
    optimizer = optimizer_of(model)

    def batch(seed: int) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, _own(usage.inputs(seed)))
        return kwargs or args

    def loss_fn(outputs: Any, _: Any) -> torch.Tensor:
        return usage.loss(outputs)

    with usage.precision():
        step = capture_whole_step(model, batch(0), None, loss_fn=loss_fn, optimizer=optimizer)
        plan = smallest_plan(prepare_whole(step))
        del step
        trainer = monet.optimize(model, batch(0), loss_fn=loss_fn, optimizer=optimizer, plan=plan)
    gc.collect()
    other = allocator.live_bytes() - held_bytes(model, trainer._step.captured.constants.values())
    peaks = []
    for seed in range(3):
        inputs = batch(seed)
        allocator.reset_peak()
        with usage.precision():
            results = trainer(inputs)
        peaks.append(allocator.peak_bytes() - other)
        del inputs, results
    return peaks, plan.peak_bytes


def main(name: str, kind: str) -> None:
    assert allocator.available()
    usage = USAGES[name]
    measure: Callable[[], tuple[list[int], int]] = (
        (lambda: trainer_peaks(usage)) if kind == "trainer" else (lambda: module_peaks(usage, kind))
    )
    peaks, promised = measure()
    print(*peaks, promised)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
