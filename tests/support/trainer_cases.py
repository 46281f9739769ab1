"""Small models with losses and optimisers, planned as whole steps, and eager's step beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from small_models import Inverted, Residual, Transformer
from smallest_budget import at_smallest_budget
from torch import nn

import monet

Batch = tuple[Any, torch.Tensor]


Optimizer = Callable[[Any], torch.optim.Optimizer]


def images(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 3, 16, 16, generator=generator), torch.randint(0, 5, (6,), generator=generator)


def _maps(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(6, 4, 8, 8, generator=generator),), torch.randint(0, 3, (6,), generator=generator)


def _tokens(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {"tokens": torch.randint(0, 50, (3, 9), generator=generator)}, torch.randint(
        0, 50, (3, 9), generator=generator
    )


def _tied() -> nn.Module:
    model = Transformer()
    model.head.weight = model.embed.weight
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Batch]]] = {
    "residual": (Residual, images),
    "inverted": (Inverted, _maps),
    "transformer": (_tied, _tokens),
}


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd, momentum, decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "sgd, nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, maximize=True),
    "sgd, foreach nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, foreach=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-3, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=1e-3),
    "adam, foreach": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
    "adam, amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "adamw, fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "adamw, groups": lambda p: torch.optim.AdamW(
        [{"params": p[:3], "lr": 1e-3, "weight_decay": 0.0}, {"params": p[3:], "betas": (0.8, 0.9)}], 1e-2
    ),
}


def case_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def case_model(name: str) -> nn.Module:
    torch.manual_seed(3)
    return MODELS[name][0]()


class EagerStep:
    """A copy of the model that PyTorch itself trains."""

    def __init__(self, model: nn.Module, make: Optimizer) -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = make(list(self.model.parameters()))

    def step(self, inputs: Any, targets: torch.Tensor, *, clip: float | None = None) -> tuple[torch.Tensor, Any]:
        self.optimizer.zero_grad()
        if isinstance(inputs, dict):
            outputs = self.model(**inputs)
        else:
            outputs = self.model(*inputs) if isinstance(inputs, tuple) else self.model(inputs)
        loss = case_loss(outputs, targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        return loss.detach(), outputs.detach()


def assert_same(a: Any, b: Any, what: str) -> None:
    """Bit by bit; the types that occur in state dictionaries."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), f"{what}: {(a.double() - b.double()).abs().max()}"
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), what
        for key in a:
            assert_same(a[key], b[key], f"{what}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), what
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{what}[{i}]")
    else:
        assert a == b, what


def assert_same_training(trainer: monet.Trainer, eager: EagerStep) -> None:
    """Model and optimiser, bit by bit."""
    module = trainer._step.model
    assert isinstance(module.model, nn.Module)
    assert_same(module.model.state_dict(), eager.model.state_dict(), "model")
    assert_same(trainer.optimizer.state_dict(), eager.optimizer.state_dict(), "optimizer")


def both_step(trainer: monet.Trainer, eager: EagerStep, batch: Batch, seed: int, *, clip: float | None = None) -> None:
    torch.manual_seed(seed)
    expected = eager.step(*batch, clip=clip)
    random_state = torch.get_rng_state()
    torch.manual_seed(seed)
    assert_same(trainer(*batch), expected, f"loss and outputs of step {seed}")
    assert torch.equal(torch.get_rng_state(), random_state)


def optimize_case(name: str, model: nn.Module, make: Optimizer, **options: Any) -> monet.Trainer:
    """For the smallest budget that is known to work, where none is given."""
    inputs, targets = MODELS[name][1](0)
    options = {"budget": 1, "exact": True, "time_limit_s": 5, "loss_fn": case_loss, **options}
    options["optimizer"] = make(list(model.parameters()))

    def trainer(budget: int | str) -> monet.Trainer:
        return monet.optimize(model, inputs, targets, **{**options, "budget": budget})

    return trainer(options["budget"]) if options["budget"] != 1 else at_smallest_budget(trainer)
