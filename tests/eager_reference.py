"""Compares a planned module with eager, step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import nn

from monet.executor.module import MonetModule
from monet.planfile import Plan

# Where an implementation is not exact: batch norm from its output rounds x̂ once more (6e-8 relative,
# amplified by cancellation in the sums over a batch), chunks run other kernels and add in another order.
# A gradient is a sum that may cancel to nothing (a bias before batch norm), so the error is relative to
# the largest gradient of any parameter in the step; the same for weights and outputs of later steps.
FLOAT32_TOLERANCE = 2e-5


def is_exact(module: MonetModule) -> bool:
    """Whether every chosen implementation equals eager bit by bit."""
    from monet.executor.codegen import implementation_of
    from monet.ops.catalogue import catalogue

    offers = catalogue(module._step.graph)
    return all(implementation_of(step, offers).exact for step in module.plan.steps)


def compare_steps(
    model: nn.Module,
    plan: Plan,
    make_inputs: Callable[[int], tuple[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]],
    *,
    steps: int = 3,
    rate: float = 0.01,
) -> MonetModule:
    """Three SGD steps on fresh inputs, eager and planned: outputs, random state, gradients of parameters
    and inputs, buffers, and weights afterwards. Bitwise where all chosen implementations are exact."""
    eager, mine = copy.deepcopy(model), copy.deepcopy(model)
    planned = MonetModule(mine, plan)
    exact = is_exact(planned)
    optimisers = [torch.optim.SGD(m.parameters(), rate, momentum=0.9) for m in (eager, planned)]

    def same(a: torch.Tensor, b: torch.Tensor, what: str, scale: float = 0.0) -> None:
        # An output that is a view of a part comes as a tensor of its own; everything else as eager lays it out.
        part = a.untyped_storage().nbytes() != a.numel() * a.itemsize
        assert a.shape == b.shape and a.dtype == b.dtype and (part or a.stride() == b.stride()), what
        if exact or not a.is_floating_point():
            assert torch.equal(a, b), f"{what}: {(a.double() - b.double()).abs().max()}"
        else:
            largest, error = max(float(a.abs().max()), scale), float((a - b).abs().max())
            assert error <= FLOAT32_TOLERANCE * largest, f"{what}: {error} of {largest}"

    for step in range(steps):
        args, kwargs = make_inputs(step)
        runs = []
        for module, optimiser in zip((eager, planned), optimisers, strict=True):
            mine_args = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
            mine_kwargs = {k: a.detach().clone().requires_grad_(a.requires_grad) for k, a in kwargs.items()}
            optimiser.zero_grad(set_to_none=True)
            torch.manual_seed(step)
            result = module(*mine_args, **mine_kwargs)
            after_forward = torch.get_rng_state()
            outputs = pytree.tree_leaves(result)
            graded = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
            generator = torch.Generator().manual_seed(1000 + step)
            cotangents = [torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype) for t in graded]
            torch.autograd.backward(graded, cotangents)
            after_backward = torch.get_rng_state()
            optimiser.step()
            runs.append(
                (
                    outputs,
                    after_forward,
                    after_backward,
                    [*mine_args, *mine_kwargs.values()],
                    pytree.tree_structure(result),
                )
            )
        (out, f, b, ins, spec), (out2, f2, b2, ins2, spec2) = runs
        assert spec == spec2
        assert torch.equal(f, f2) and torch.equal(b, b2), "the random state differs"
        for i, (x, y) in enumerate(zip(out, out2, strict=True)):
            if isinstance(x, torch.Tensor):
                assert x.requires_grad == y.requires_grad
                same(x.detach(), y.detach(), f"output {i} of step {step}")
            else:
                assert x == y
        for i, (x, y) in enumerate(zip(ins, ins2, strict=True)):
            assert (x.grad is None) == (y.grad is None)
            if x.grad is not None and y.grad is not None:
                same(x.grad, y.grad, f"gradient of input {i} in step {step}")
        scale = max(float(p.grad.abs().max()) for p in eager.parameters() if p.grad is not None)
        for (name, p), (name2, q) in zip(eager.named_parameters(), planned.named_parameters(), strict=True):
            assert name == name2
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None and q.grad is not None:
                same(p.grad, q.grad, f"gradient of {name} in step {step}", scale)
            same(p.detach(), q.detach(), f"{name} after step {step}", rate * scale)
        for (name, x), (_, y) in zip(eager.named_buffers(), planned.named_buffers(), strict=True):
            same(x, y, f"buffer {name} after step {step}")
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()
    return planned
