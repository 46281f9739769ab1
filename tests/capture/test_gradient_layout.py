"""What autograd would copy when a gradient arrives is copied in the step: the promise holds, and nothing is copied
twice."""

from __future__ import annotations

import torch
from eager_reference import compare_steps
from peak_meter import measured_peak_bytes
from torch import nn

import monet
from monet.capture import capture
from monet.capture.rewriting.gradient_layout import with_own_layout

Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


class LastNorm(nn.Module):
    """A layer norm over channels, after which images are channels-last, as in ConvNeXt."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal: torch.Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normal


class Sum(nn.Module):
    """One tensor is the gradient of both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(64, 32)), nn.Parameter(torch.zeros(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.a + self.b)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), LastNorm(32), nn.Conv2d(32, 64, 2, 2), nn.GELU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.Flatten(2), nn.Linear(64, 32), Sum(),
    )  # fmt: skip


def _inputs(seed: int) -> Inputs:
    return (torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)),), {}


def test_the_promise_counts_the_copies() -> None:
    model = _model()
    plan = monet.plan(model, *_inputs(0), budget="100%", time_limit_s=5.0)
    copies = [step.node for step in plan.steps if step.node.endswith(".grad")]
    assert len(copies) == 3, "two weights after channels-last images, and the second of two equal gradients"
    compare_steps(model, plan, _inputs)
    assert measured_peak_bytes(model, plan, _inputs) == plan.peak_bytes
    planned = monet.MonetModule(model, plan)
    planned(*_inputs(1)[0]).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.stride() == parameter.stride(), name


class ConjugateSum(nn.Module):
    """One tensor that is to be conjugated by whoever reads it is the gradient of both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(8, 4, dtype=torch.complex64)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x * (self.a + self.b).conj())


def test_a_copy_of_a_conjugate_is_none() -> None:
    torch.manual_seed(0)
    model = ConjugateSum()
    graph = capture(model, (torch.randn(8, 4),), {}).graph
    (copied,) = (op for op in graph.backward if op.name.endswith(".grad"))
    read, made = graph.values[copied.args[0].name], graph.values[copied.name]
    assert read.conjugate and not made.conjugate


def test_what_autograd_takes_as_it_is_is_not_copied() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 3))
    graph = capture(model, (torch.randn(2, 3, 8, 8),)).graph
    assert with_own_layout(graph) is graph
    last = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    graph = capture(last, (torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),)).graph
    assert with_own_layout(graph) is graph, "channels-last weights have channels-last gradients"
