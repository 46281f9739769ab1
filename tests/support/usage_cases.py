"""How people train: precisions, frozen parts, several outputs, keyword inputs, models with a loss of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from small_models import Inverted, Residual, Transformer
from smallest_budget import at_smallest_budget
from torch import nn

import monet
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.search import Solving

Call = tuple[tuple[Any, ...], dict[str, Any]]


HALF = torch.bfloat16


@dataclass(frozen=True)
class Usage:
    """``loss``: of what the model returns. ``autocast``: the precision around forward and loss, None: off."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Call]
    loss: Callable[[Any], torch.Tensor]
    autocast: torch.dtype | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(7)
        return self.make()

    def precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast("cpu", dtype=self.autocast)


class Normed(nn.Module):
    """Convolutions with a norm of each kind, dropout, pooling; every norm sees a bfloat16 input under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.group = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.third, self.instance = nn.Conv2d(8, 8, 1), nn.InstanceNorm2d(8, affine=True)
        self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 5)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.batch(self.first(x))), 2)
        x = x + self.drop(nn.functional.gelu(self.group(self.second(x))))
        x = nn.functional.silu(self.instance(self.third(x)))
        out: torch.Tensor = self.head(self.layer(x.mean((2, 3))))
        return out


class Shared(nn.Module):
    """One weight used twice in an autocast context, in a nested one, in one that is off, and in the next context."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=HALF):
            x = torch.relu(self.one(torch.tanh(self.one(x))))
            with torch.autocast("cpu", enabled=False):
                x = x.float() @ self.one.weight
            with torch.autocast("cpu", dtype=HALF):
                x = self.two(self.one(x))
            x = self.two(x)
        with torch.autocast("cpu", dtype=HALF):
            x = torch.relu(self.one(self.one(x)))
        return x.float()


class Inside(nn.Module):
    """The usual model that autocasts itself, its loss in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Normed()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        with torch.autocast("cpu", dtype=HALF):
            logits = self.body(x)
        logits = logits.float()
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits, "classes": 5}


class Several(nn.Module):
    """Two heads over a common part, of which a loss may use one; a frozen layer between; two inputs with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.frozen = nn.Linear(8, 12), nn.Linear(12, 12).requires_grad_(False)
        self.used, self.unused = nn.Linear(12, 4), nn.Linear(12, 3)
        self.norm = nn.BatchNorm1d(12)

    def forward(self, *, x: torch.Tensor, scale: torch.Tensor, shift: float = 0.0) -> dict[str, Any]:
        x = torch.relu(self.norm(self.common(x))) * scale + shift
        x = torch.sigmoid(self.frozen(x))
        return {"heads": (self.used(x), [self.unused(x)]), "hidden": x}


def tiny_gpt2() -> nn.Module:
    """transformers' GPT-2 with two small layers, in training mode, dropout 0.1; returns a ``ModelOutput``."""
    from monet.models.torchvision_schemas import with_torchvision_schemas

    def build() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0,
            use_cache=False,
        )  # fmt: skip
        model: nn.Module = GPT2LMHeadModel(config)
        return model.train()

    return with_torchvision_schemas(build)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(dtype: torch.dtype = torch.float32) -> Callable[[int], Call]:
    return lambda seed: ((torch.randn(4, 3, 8, 8, generator=_generator(seed)).to(dtype),), {})


def _maps(seed: int) -> Call:
    return (torch.randn(4, 4, 8, 8, generator=_generator(seed)).bfloat16(),), {}


def _tokens(seed: int) -> Call:
    return (torch.randint(0, 50, (3, 9), generator=_generator(seed)),), {}


def _rows(seed: int) -> Call:
    return (torch.randn(6, 16, generator=_generator(seed)),), {}


def _labelled(seed: int) -> Call:
    (images,), _ = _images()(seed)
    return (), {"x": images, "labels": torch.randint(0, 5, (4,), generator=_generator(100 + seed))}


def _several(seed: int) -> Call:
    generator = _generator(seed)
    x = torch.randn(6, 8, generator=generator).requires_grad_()
    return (), {"x": x, "shift": 0.25, "scale": torch.randn(6, 12, generator=generator).requires_grad_()}


def _text(seed: int) -> Call:
    """The labels are the text itself, the very tensor; models shift them."""
    tokens = torch.randint(0, 64, (2, 12), generator=_generator(seed))
    return (), {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def _squares(out: torch.Tensor) -> torch.Tensor:
    return (out.float() - 0.5).square().mean()


def _cross_entropy(out: torch.Tensor) -> torch.Tensor:
    classes = out.shape[-1]
    labels = torch.arange(out.numel() // classes) % classes
    return nn.functional.cross_entropy(out.flatten(0, -2), labels)


def _loss_of(out: Any) -> torch.Tensor:
    loss: torch.Tensor = out["loss"]
    return loss


def _frozen_residual() -> nn.Module:
    """Fine-tuning: the stem is frozen, its batch norm in evaluation mode."""
    model = Residual(8)
    model.stem.requires_grad_(False)
    model.stem[1].eval()
    return model


USAGES: dict[str, Usage] = {
    "float32": Usage(Normed, _images(), _cross_entropy),
    "bfloat16": Usage(lambda: Normed().bfloat16(), _images(HALF), _cross_entropy),
    "bfloat16 inverted": Usage(lambda: Inverted().bfloat16(), _maps, _cross_entropy),
    "bfloat16 transformer": Usage(lambda: Transformer().bfloat16(), _tokens, _cross_entropy),
    "autocast": Usage(Normed, _images(), _cross_entropy, HALF),
    "autocast residual": Usage(lambda: Residual(8), _images(), _cross_entropy, HALF),
    "autocast transformer": Usage(Transformer, _tokens, _cross_entropy, HALF),
    "autocast shared": Usage(Shared, _rows, _squares, HALF),
    "shared": Usage(Shared, _rows, _squares),
    "autocast inside": Usage(Inside, _labelled, _loss_of),
    "frozen": Usage(_frozen_residual, _images(), _cross_entropy),
    "frozen autocast": Usage(_frozen_residual, _images(), _cross_entropy, HALF),
    "several outputs": Usage(Several, _several, lambda out: _squares(out["heads"][0])),
    "several autocast": Usage(Several, _several, lambda out: _squares(out["heads"][0]), HALF),
    "gpt2": Usage(tiny_gpt2, _text, lambda out: out.loss),
    "gpt2 autocast": Usage(tiny_gpt2, _text, lambda out: out.loss, HALF),
    "gpt2 bfloat16": Usage(lambda: tiny_gpt2().bfloat16(), _text, lambda out: out.loss),
}


# Any plan will do: these tests are about results, and a good plan takes longer to find.
HASTE = Solving(gap=0.5, time_limit_s=2)


def prepared_usage(usage: Usage, *, accumulate: bool = False, exact: bool = True) -> Prepared:
    args, kwargs = usage.inputs(0)
    with usage.precision():
        return prepare(usage.model(), args, kwargs, Preparing(accumulate=accumulate), Offering(exact))


def smallest_plan(prepared: Prepared) -> monet.Plan:
    """For the least budget that an error names."""
    return at_smallest_budget(lambda budget: plan_prepared(prepared, budget, HASTE)).plan


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two parameter groups, as usual: no decay for what has one dimension."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0, "lr": 2e-3},
    ]
    return torch.optim.AdamW(groups, 1e-2)
