"""Gradients that add up: in their own memory where nobody else reads a term, apart from it where somebody does."""

from __future__ import annotations

import copy

import pytest
import torch
from eager_reference import compare_steps
from peak_meter import measured_peak_bytes
from torch import nn

import monet
from monet.capture import capture

aten = torch.ops.aten


class Shared(nn.Module):
    """One weight, used ``times`` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(64, 64), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return x


class Twice(nn.Module):
    """Both parameters have the same gradient, a sum of two terms."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.a + self.b
        return torch.tanh(both * x) + torch.sigmoid(both * x)


class Tied(nn.Module):
    """An embedding that is also the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 16)
        self.head = nn.Linear(16, 500, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.embed(tokens)))
        return out


def _noise(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return (torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)),), {}


def _tokens(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return (torch.randint(500, (2, 3), generator=torch.Generator().manual_seed(seed)),), {}


def test_sums_take_the_place_of_their_first_term() -> None:
    graph = capture(Shared(5), *_noise(0)).graph
    sums = [op for op in graph.backward if op.target is aten.add_.Tensor]
    assert len(sums) == 2 * 4
    gradients = {graph.storage(name) for name in graph.gradients.values()}
    for op in sums:
        assert op.outputs[0] is not None and graph.storage(op.outputs[0]) in gradients
        assert graph.storage(op.args[0].name) == graph.storage(op.outputs[0])
    assert not any(op.target is aten.add.Tensor for op in graph.backward)


def test_a_gradient_of_two_parameters_is_not_changed_for_one() -> None:
    """The sum is the gradient of both; a term of it that is another's gradient must stay what it is."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.a + self.b) * x + self.a * 2

    for model in (Twice(), Chain()):
        x = torch.randn(8)
        plan = monet.plan(model, (x,), budget="1GB")
        planned = monet.MonetModule(copy.deepcopy(model), plan)
        model(x).sum().backward()
        planned(x).sum().backward()
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.grad, planned.get_parameter(name).grad), name  # type: ignore[arg-type]


class Symmetric(nn.Module):
    """The gradient of a weight that is added to its transpose is a sum of one tensor and its own transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ (self.weight + self.weight.t()))


def test_a_tensor_is_not_added_to_a_view_of_itself() -> None:
    torch.manual_seed(0)
    model = Symmetric()

    def make(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        return (torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)),), {}

    compare_steps(model, monet.plan(model, *make(0), budget="10MB", time_limit_s=5), make)


@pytest.mark.parametrize("case", ["shared", "tied"])
def test_steps_equal_eager_and_the_sums_take_one_temporary(case: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = Shared(5) if case == "shared" else Tied()
    make = _noise if case == "shared" else _tokens
    plan = monet.plan(model, *make(0), budget="10MB", time_limit_s=5)
    compare_steps(model, plan, make)
    assert measured_peak_bytes(model, plan, make) == plan.peak_bytes
    size = 64 * 64 * 4 if case == "shared" else 500 * 16 * 4
    large = [b for b in plan.buffers if b.bytes >= size]
    at_once = max(sum(b.begin <= other.begin < b.end for b in large) for other in large)
    # The sum, which is the gradient, and one term that waits to be added. The tied one's logits are not as large.
    assert at_once == 2


@pytest.mark.parametrize("case", ["shared", "tied"])
def test_whole_steps_equal_eager(case: str) -> None:
    """There gradients are in the arena, and the program decides which sum overwrites which term."""
    torch.manual_seed(0)
    model: nn.Module = Shared(5) if case == "shared" else Tied()
    (inputs,), _ = (_noise if case == "shared" else _tokens)(0)
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, other)]
    trainer = monet.optimize(
        model,
        inputs,
        inputs,
        loss_fn=lambda y, x: y.square().mean(),
        optimizer=optimizers[0],
        budget="10MB",
        exact=True,
    )
    for _ in range(3):
        optimizers[1].zero_grad()
        other(inputs).square().mean().backward()
        optimizers[1].step()
        trainer(inputs, inputs)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
