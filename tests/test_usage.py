"""Training as people do it, planned against eager: bit by bit with ``exact=True``, at a full and at the smallest budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from usage_cases import USAGES, Usage

import monet
from monet.errors import InfeasibleBudget

STEPS = 3
MOST_NORM = 0.3
BUDGETS = {"full": "10GB", "smallest": 1}


def plan_usage(usage: Usage, budget: int | str, **options: Any) -> monet.Plan:
    """For this budget, or the least that an error names."""
    args, kwargs = usage.inputs(0)
    with usage.precision():
        return _smallest(
            budget,
            lambda budget: monet.plan(
                usage.model(), args, kwargs, budget=budget, **{"exact": True, "time_limit_s": 10, **options}
            ),
        )


def _smallest(budget: int | str, plan: Callable[[int | str], Any]) -> Any:
    for _ in range(5):
        try:
            return plan(budget)
        except InfeasibleBudget as error:
            assert isinstance(budget, int) and error.smallest_bytes is not None and error.smallest_bytes > budget
            budget = error.smallest_bytes
    raise AssertionError(f"budgets that errors name do not suffice: {budget} bytes")


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two parameter groups, as usual: no decay for what has one dimension."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0, "lr": 2e-3},
    ]
    return torch.optim.AdamW(groups, 1e-2)


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


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", USAGES)
def test_planned_modules_train_as_eager(name: str, budget: str) -> None:
    usage = USAGES[name]
    plan = plan_usage(usage, BUDGETS[budget])
    eager = usage.model()
    planned = monet.MonetModule(usage.model(), plan)
    optimizers = [optimizer_of(module) for module in (planned, eager)]
    for step in range(STEPS):
        mine, theirs = (
            train_step(m, o, usage, step) for m, o in zip((planned, eager), optimizers, strict=True)
        )
        assert any(bool(v.any()) for k, v in theirs.items() if k.startswith("gradient") and v is not None)
        assert_same_step(mine, theirs, step)
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()


@pytest.mark.parametrize("name", USAGES)
def test_trainers_train_as_eager(name: str) -> None:
    usage = USAGES[name]
    model, eager = usage.model(), usage.model()
    optimizer, other = optimizer_of(model), optimizer_of(eager)

    def batch(seed: int) -> Any:
        args, kwargs = usage.inputs(seed)
        return kwargs or args

    with usage.precision():
        trainer = _smallest(
            1,
            lambda budget: monet.optimize(
                model, batch(0), loss_fn=lambda outputs, _: usage.loss(outputs), optimizer=optimizer, budget=budget,
                clip_grad_norm=MOST_NORM, exact=True, time_limit_s=10,
            ),
        )  # fmt: skip
    for step in range(STEPS):
        expected = train_step(eager, other, usage, step)
        torch.manual_seed(step)
        with usage.precision():
            loss, outputs = trainer(batch(step))
        assert torch.equal(loss, expected["loss"])
        assert str(pytree.tree_structure(outputs)) == expected["structure"]
        for i, leaf in enumerate(pytree.tree_leaves(outputs)):
            assert not isinstance(leaf, torch.Tensor) or torch.equal(leaf, expected[f"output {i}"])
        assert torch.equal(torch.get_rng_state(), expected["random state"])
        for key, value in model.state_dict().items():
            assert torch.equal(value, expected[key]), f"{key} in step {step}"
    arena = trainer._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()
