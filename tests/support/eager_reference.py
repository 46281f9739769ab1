"""Compares a planned module with eager, step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from monet.executor.module import MonetModule
from monet.plans.plan import Plan

# Where an implementation is not exact: batch norm from its output rounds x̂ once more (6e-8 relative,
# amplified by cancellation in the sums over a batch), chunks run other kernels and add in another order.
# A gradient is a sum that may cancel to nothing (a bias before batch norm), so the error is relative to
# the largest gradient of any parameter in the step; the same for weights and outputs of later steps.
FLOAT32_TOLERANCE = 2e-5
# A deep network with few samples amplifies any rounding, and steps amplify it again: where an activation is near 0 a
# ReLU's gradient is there or not. How much is measured on eager itself: copies whose weights are off by one rounding
# (6e-8 relative), and one that runs PyTorch's other convolution kernels, which add up in another order. What a
# plan changes may be a few times what these copies change. One activation near 0 is on its other side in a part of the
# copies only (ResNet-50's layer4.2 at 2 x 2 pixels: in 4 of 12, with the very difference of the plan's), so there are
# several, as many as are needed. Gradients within the tolerance leave weights that are off by more than a rounding (two
# batch norms from their outputs: one pixel of a later step's input gradient), so the step that follows is compared with
# eager's from the same weights, too.
ROUNDINGS = 8.0
COPIES = 8
MakeInputs = Callable[[int], tuple[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]]


@dataclass(frozen=True)
class Step:
    """All that one training step leaves, by name; ``others`` are outputs that are no tensors."""

    tensors: dict[str, torch.Tensor]
    others: list[Any]
    structure: Any
    random_states: tuple[torch.Tensor, torch.Tensor]


def is_exact(module: MonetModule) -> bool:
    """Whether every chosen implementation equals eager bit by bit."""
    from monet.executor.codegen import implementation_of
    from monet.ops.catalogue import catalogue

    offers = catalogue(module._step.graph)
    return all(implementation_of(step, offers).exact for step in module.plan.steps)


def assert_same_gradients(mine: nn.Module, eager: nn.Module) -> None:
    """All parameters have gradients, which are equal bit by bit."""
    for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def run_step(
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    inputs: tuple[Sequence[torch.Tensor], Mapping[str, torch.Tensor]],
    seed: int,
) -> Step:
    """Forward, backward from random cotangents, update; inputs are copied first."""
    args = [a.detach().clone().requires_grad_(a.requires_grad) for a in inputs[0]]
    kwargs = {k: a.detach().clone().requires_grad_(a.requires_grad) for k, a in inputs[1].items()}
    optimiser.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    result = module(*args, **kwargs)
    after_forward = torch.get_rng_state()
    outputs = pytree.tree_leaves(result)
    graded = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(1000 + seed)
    torch.autograd.backward(graded, [torch.randn(t.shape, generator=generator).to(t.dtype) for t in graded])
    after_backward = torch.get_rng_state()
    gradients = {f"gradient of {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    optimiser.step()
    tensors = {
        **{f"output {i}": t.detach() for i, t in enumerate(outputs) if isinstance(t, torch.Tensor)},
        **{f"gradient of input {i}": t.grad for i, t in enumerate([*args, *kwargs.values()]) if t.grad is not None},
        **gradients,
        **{f"parameter {name}": p.detach().clone() for name, p in module.named_parameters()},
        **{f"buffer {name}": b.detach().clone() for name, b in module.named_buffers()},
    }
    others = [t.requires_grad if isinstance(t, torch.Tensor) else t for t in outputs]
    return Step(tensors, others, pytree.tree_structure(result), (after_forward, after_backward))


def compare_steps(
    model: nn.Module,
    plan: Plan,
    make_inputs: MakeInputs,
    *,
    steps: int = 3,
    rate: float = 0.01,
) -> MonetModule:
    """Three SGD steps on fresh inputs, eager and planned: outputs, random state, gradients of parameters
    and inputs, buffers, and weights afterwards. Bitwise where all chosen implementations are exact."""
    planned = MonetModule(copy.deepcopy(model), plan)
    exact = is_exact(planned)

    def run(module: nn.Module, states: list[_State] | None = None) -> Iterator[Step]:
        optimiser = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
        for step in range(steps):
            if states is not None:
                states.append(_State(copy.deepcopy(module.state_dict()), copy.deepcopy(optimiser.state_dict())))
            yield run_step(module, optimiser, make_inputs(step), step)

    states: list[_State] = []
    rounded: list[dict[str, _Rounded]] = [{} for _ in range(steps)]  # of each step, by name
    for step, (eager, mine) in enumerate(zip(run(copy.deepcopy(model)), run(planned, states), strict=True)):
        assert eager.structure == mine.structure and eager.others == mine.others
        assert eager.tensors.keys() == mine.tensors.keys()
        for ours, theirs in zip(mine.random_states, eager.random_states, strict=True):
            assert torch.equal(ours, theirs), "the random state differs"
        scale = max(float(t.abs().max()) for n, t in eager.tensors.items() if n.startswith("gradient"))
        for name, expected in eager.tensors.items():
            what, found = f"{name} in step {step}", mine.tensors[name]
            # An output that is a view of a part comes as a tensor of its own; all else as eager lays it out.
            assert not expected.is_floating_point() or torch.isfinite(expected).all(), f"eager's {what} is not finite"
            part = expected.untyped_storage().nbytes() != expected.numel() * expected.itemsize
            assert expected.shape == found.shape and expected.dtype == found.dtype, what
            assert part or expected.stride() == found.stride(), what
            if exact or not expected.is_floating_point():
                assert torch.equal(expected, found), f"{what}: {(expected.double() - found.double()).abs().max()}"
                continue
            beside = scale if name.startswith("gradient") else rate * scale if name.startswith("parameter") else 0.0
            largest = max(float(expected.abs().max()), beside)
            error = float((expected - found).abs().max())
            if not error <= FLOAT32_TOLERANCE * largest:
                rounded[step][name] = _Rounded(what, expected, found, largest, error)
    for step, of_step in enumerate(rounded):
        if of_step:  # eager's step from where the planned module was
            module = copy.deepcopy(model)
            optimiser = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
            with torch.no_grad():  # some models' load_state_dict changes the model (MNASNet)
                for name, tensor in module.state_dict().items():
                    tensor.copy_(states[step].module[name])
            optimiser.load_state_dict(states[step].optimiser)
            from_there = run_step(module, optimiser, make_inputs(step), step)
            for name, one in of_step.items():
                one.from_there = float((one.found - from_there.tensors[name]).abs().max())
    questioned = [one for of_step in rounded for one in of_step.values()]
    copies = _roundings(model)
    while not all(one.allowed for one in questioned) and (other := next(copies, None)) is not None:
        for copied, of_step in zip(run(other), rounded, strict=True):
            for name, one in of_step.items():
                one.eagers = max(one.eagers, float((one.expected - copied.tensors[name]).abs().max()))
    for one in questioned:
        assert one.allowed, (
            f"{one.what}: {one.error} of {one.largest}, and roundings of eager make {one.eagers}; "
            f"{one.from_there} from the same state"
        )
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()
    return planned


@dataclass(frozen=True)
class _State:
    """Of a module and its optimiser before a step."""

    module: dict[str, Any]
    optimiser: dict[str, Any]


@dataclass
class _Rounded:
    """A tensor that differs from eager's by ``error``, more than the tolerance; ``eagers``: by how much eager's own
    copies differ; ``from_there``: by how much it differs from what eager's step makes of the state that the planned
    module had before this one."""

    what: str
    expected: torch.Tensor
    found: torch.Tensor
    largest: float
    error: float
    eagers: float = 0.0
    from_there: float = float("inf")

    @property
    def allowed(self) -> bool:
        return self.error <= ROUNDINGS * self.eagers or self.from_there <= FLOAT32_TOLERANCE * self.largest


def _roundings(model: nn.Module) -> Iterator[nn.Module]:
    """Copies of a model whose steps differ from its own by roundings only."""
    yield _off_by_a_rounding(model, 0)
    yield _OtherKernels(copy.deepcopy(model))
    yield from (_off_by_a_rounding(model, seed) for seed in range(1, COPIES))


class _OtherKernels(nn.Module):
    """A model on PyTorch's kernels without oneDNN, forward and backward; names are the model's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._modules, self._parameters, self._buffers = model._modules, model._parameters, model._buffers
        self.__dict__["model"] = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.backends.mkldnn.flags(enabled=False):
            return self.__dict__["model"](*args, **kwargs)


def _off_by_a_rounding(model: nn.Module, seed: int) -> nn.Module:
    """A copy whose weights are each multiplied by 1 plus or minus 6e-8."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(p * (torch.rand(p.shape, generator=generator) - 0.5).sign().to(p.dtype) * 2.0**-24)
    return other
