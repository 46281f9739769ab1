"""Training as people do it, planned against eager, bit by bit with ``exact=True``, at a full and a smallest budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from usage_cases import HASTE, USAGES, Usage, optimizer_of, prepared_usage, smallest_plan

import monet
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare_whole
from monet.step.training_step.whole_step import capture_whole_step

pytestmark = pytest.mark.usefixtures("hasty_orders")


STEPS = 3


MOST_NORM = 0.3


# Those that share their operators with another one, or take seconds to plan.
QUICK_MODULES = ["float32", "bfloat16", "bfloat16 inverted", "autocast", "autocast shared", "shared", "autocast inside"]


QUICK_MODULES += ["frozen autocast", "several outputs"]


QUICK_TRAINERS = ["bfloat16", "frozen", "several outputs", "autocast inside"]


def _names(quick: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in USAGES]


def train_step(module: nn.Module, optimizer: torch.optim.Optimizer, usage: Usage, seed: int) -> dict[str, Any]:
    """Everything that a step leaves, by name."""
    args, kwargs = usage.inputs(seed)
    optimizer.zero_grad()
    torch.manual_seed(seed)
    with usage.precision():
        outputs = module(*args, **kwargs)
        loss = usage.loss(outputs)
    after_forward = torch.get_rng_state()
    loss.backward()
    gradients = {f"gradient of {n}": None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}
    norm = nn.utils.clip_grad_norm_(module.parameters(), MOST_NORM)
    optimizer.step()
    leaves = pytree.tree_leaves(outputs)
    return {
        "loss": loss.detach(),
        "norm": norm,
        "structure": str(pytree.tree_structure(outputs)),
        "kinds": [(type(leaf), getattr(leaf, "requires_grad", leaf)) for leaf in leaves],
        **{f"output {i}": leaf.detach() for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)},
        **{
            f"gradient of input {i}": leaf.grad
            for i, leaf in enumerate(pytree.tree_leaves((args, kwargs)))
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        },
        **gradients,
        **{name: value.clone() for name, value in module.state_dict().items()},
        "random state after forward": after_forward,
        "random state": torch.get_rng_state(),
    }


def assert_same_step(found: dict[str, Any], expected: dict[str, Any], step: int) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        what, other = f"{name} in step {step}", found[name]
        if isinstance(value, torch.Tensor):
            assert isinstance(other, torch.Tensor), what
            assert other.dtype == value.dtype and other.stride() == value.stride(), what
            assert torch.equal(other, value), f"{what}: {(other.double() - value.double()).abs().max()}"
        else:
            assert other == value, what


@pytest.mark.parametrize("name", _names(QUICK_MODULES))
@pytest.mark.sampled(4)
def test_planned_modules_train_as_eager(name: str) -> None:
    usage = USAGES[name]
    prepared = prepared_usage(usage)
    plans = [smallest_plan(prepared)]
    if name in ("float32", "bfloat16", "autocast", "several outputs"):
        plans.append(plan_prepared(prepared, "10GB", HASTE).plan)
    for plan in plans:
        eager = usage.model()
        planned = monet.MonetModule(usage.model(), plan)
        optimizers = [optimizer_of(module) for module in (planned, eager)]
        for step in range(STEPS):
            mine, theirs = (train_step(m, o, usage, step) for m, o in zip((planned, eager), optimizers, strict=True))
            assert any(bool(v.any()) for k, v in theirs.items() if k.startswith("gradient") and v is not None)
            assert_same_step(mine, theirs, step)
        arena = planned._step.runner.arena
        assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()


@pytest.mark.parametrize("name", _names(QUICK_TRAINERS))
@pytest.mark.sampled(4)
def test_trainers_train_as_eager(name: str) -> None:
    usage = USAGES[name]
    model, eager = usage.model(), usage.model()
    optimizer, other = optimizer_of(model), optimizer_of(eager)

    def batch(seed: int) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, usage.inputs(seed))
        return kwargs or args

    def loss_fn(outputs: Any, _: Any) -> torch.Tensor:
        return usage.loss(outputs)

    with usage.precision():
        step = capture_whole_step(model, batch(0), None, loss_fn=loss_fn, optimizer=optimizer, clip_grad_norm=MOST_NORM)
        plan = smallest_plan(prepare_whole(step, offering=Offering(exact=True)))
        trainer = monet.optimize(
            model, batch(0), loss_fn=loss_fn, optimizer=optimizer, plan=plan, clip_grad_norm=MOST_NORM
        )
    for seed in range(STEPS):
        expected = train_step(eager, other, usage, seed)
        torch.manual_seed(seed)
        with usage.precision():
            loss, outputs = trainer(batch(seed))
        assert torch.equal(loss, expected["loss"])
        assert str(pytree.tree_structure(outputs)) == expected["structure"]
        for i, leaf in enumerate(pytree.tree_leaves(outputs)):
            assert not isinstance(leaf, torch.Tensor) or torch.equal(leaf, expected[f"output {i}"])
        assert torch.equal(torch.get_rng_state(), expected["random state"])
        for key, value in model.state_dict().items():
            assert torch.equal(value, expected[key]), f"{key} in step {seed}"
    arena = trainer._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()
