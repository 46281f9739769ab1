"""Whole planned steps over operators that read only shapes, im2col and channels-last tensors, against eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from eager_reference import compare_steps
from smallest_budget import at_smallest_budget
from torch import nn
from torch.nn import functional

import monet
from monet.base.graph import Operator
from monet.capture import capture
from monet.errors import InfeasibleBudget
from monet.ops.catalogue import catalogue
from monet.ops.offers.implementation import Implementation


class Mixed(nn.Module):
    """Pooling of each kind, padding, interpolation, 1 x 1 and heavy convolutions, views of zeros, its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.point = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 1)
        self.heavy = nn.Conv2d(32, 64, 3, padding=1)
        # No bias: eager's own gradient of it is off by 3e-5 here (against float64), a chunked or im2col one by less.
        self.up = nn.ConvTranspose2d(64, 8, 2, 2, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.point(self.first(x)))
        x = torch.sin(torch.sin(torch.sin(x)))  # Kept or made again: memory to save, whichever convolution is fastest.
        x = functional.max_pool2d(x, 3, 2, 1).contiguous(memory_format=torch.channels_last)
        x = functional.avg_pool2d(functional.pad(x * 1.5, (1, 1, 1, 1), "reflect"), 2)
        x = torch.sigmoid(self.heavy(functional.adaptive_max_pool2d(x, 12).contiguous()))
        x = self.up(functional.interpolate(x, scale_factor=2, mode="bilinear"))
        x = functional.max_pool3d(x.unflatten(1, (2, 4)).transpose(1, 2), (1, 2, 2)).unbind(2)[1]
        return functional.cross_entropy(
            self.head(functional.adaptive_avg_pool2d(x, 3).mean((2, 3)).repeat(1, 2)), classes
        )


def _inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(5, (8,), generator=generator)
    return (torch.randn(8, 3, 96, 96, generator=generator).requires_grad_(), classes), {}


@pytest.mark.parametrize("exact", [pytest.param(True, marks=pytest.mark.slow), False])
def test_steps_equal_eager(exact: bool) -> None:
    """With all the memory, and with the least that an error names."""
    torch.manual_seed(0)
    model = Mixed()
    args, kwargs = _inputs(0)
    full = monet.plan(model, args, kwargs, budget="10GB", exact=exact, time_limit_s=5)
    budget = full.fixed_bytes + full.arena_bytes // 2

    def of(budget: int) -> monet.Plan:
        return monet.plan(model, args, kwargs, budget=budget, exact=exact, time_limit_s=5)

    try:
        small = of(budget)
    except InfeasibleBudget:
        small = at_smallest_budget(of, budget)
    for plan in (full, small):
        compare_steps(model, plan, _inputs)
    assert small.arena_bytes < full.arena_bytes


def _backward(model: nn.Module, *inputs: torch.Tensor) -> list[tuple[Operator, Implementation]]:
    graph = capture(model, inputs).graph
    offers = catalogue(graph)
    return [(op, next(iter(offers.backward[op.name].values()))) for op in graph.backward if not op.view]


def test_inputs_are_freed_where_only_their_shape_matters() -> None:
    for operator in (nn.AvgPool2d(2), nn.AdaptiveAvgPool3d(2), nn.ReflectionPad2d(1), nn.Upsample(scale_factor=2)):
        shape = (1, 2, 4, 4, 4) if isinstance(operator, nn.AdaptiveAvgPool3d) else (1, 2, 4, 4)
        model = nn.Sequential(nn.Sigmoid(), operator, nn.Sigmoid())
        (_, first), (op, implementation), _ = _backward(model, torch.randn(shape, requires_grad=True))
        assert "sigmoid" in first.call_name
        assert len(implementation.inputs()) == 1, f"{op.target} reads more than the incoming gradient"


def test_a_linear_layers_input_gradient_reads_the_weight_alone() -> None:
    """Only the weight gradient keeps the input; where the weight is frozen, nothing does."""
    model = nn.Sequential(nn.Sigmoid(), nn.Linear(4, 3), nn.Sigmoid())
    x = torch.randn(5, 4, requires_grad=True)
    products = [op for op, _ in _backward(model, x) if op.target is torch.ops.aten.mm.default]
    assert len(products) == 2
    model[1].weight.requires_grad_(False)
    products = [op for op, _ in _backward(model, x) if op.target is torch.ops.aten.mm.default]
    assert len(products) == 1


class Spectral(nn.Module):
    """A product in the frequency domain, whose gradients conjugate: lazily, in whichever kernel reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 24)
        self.filter = nn.Parameter(torch.randn(13, 13, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(self.project(x)) @ self.filter
        signal: torch.Tensor = torch.fft.irfft(spectrum * self.filter[0] - spectrum.conj())
        phase: torch.Tensor = spectrum.conj().imag
        return signal + phase.mean()


def test_conjugates_are_planned_for() -> None:
    torch.manual_seed(0)
    model = Spectral()

    def inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        return (torch.randn(6, 24, generator=torch.Generator().manual_seed(seed)),), {}

    values = capture(model, *inputs(0)).graph.values.values()
    assert any(v.conjugate for v in values) and any(v.negative for v in values)
    for plan in (
        monet.plan(model, *inputs(0), budget="10GB", time_limit_s=5),
        at_smallest_budget(lambda budget: monet.plan(model, *inputs(0), budget=budget, time_limit_s=5)),
    ):
        compare_steps(model, plan, inputs)  # which checks that no request was missed


class Halves(nn.Module):
    """Writes to a part of all of one tensor, and to a part of some rows of another, which have the same geometry."""

    def __init__(self) -> None:
        super().__init__()
        self.some, self.all = nn.Linear(64, 768), nn.Linear(64, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some, whole = self.some(x), self.all(x[:4])
        part = torch.slice_scatter(whole, whole[:, :2] * 2, 1, 0, 2)
        of_some = torch.slice_scatter(some[:4], some[:4, :2] * 3, 1, 0, 2)
        # All are read afterwards, so that none is written in place.
        return torch.stack([each.sin().mean() for each in (some, whole, part, of_some)]).sum()


def test_what_an_operator_copies_of_its_inputs_storage_is_planned() -> None:
    torch.manual_seed(0)
    model = Halves()

    def inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        return (torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)),), {}

    plan = monet.plan(model, inputs(0)[0], budget="1GB")
    asked = {size for step in plan.steps if "slice_scatter" in step.node for size in step.request_bytes}
    assert asked == {4 * 4 * 768, 4 * 16 * 768}
    compare_steps(model, plan, inputs)  # no request is another one than planned


class Written(nn.Module):
    """Writes to parts of a copy of its input, and of what it made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copy, made = x.clone(), self.linear(x)
        copy[:, :2] = 0.5
        made[:, 3] = made[:, 5] * 2
        made[:2] = 1.0
        rows = x.clone().view(32, 32)
        rows[4] = 0.25
        return (torch.where(copy > 0, made, copy).sin() * rows.view(16, 64)).square().mean()


def test_a_batch_that_is_a_part_of_the_data_asks_for_no_more_than_planned(caplog: pytest.LogCaptureFixture) -> None:
    """``data[i : i + 16]``: aten would copy all of the data with the batch."""
    torch.manual_seed(0)
    model, data = Written(), torch.randn(512, 64)
    planned = monet.MonetModule(copy.deepcopy(model), monet.plan(model, (torch.randn(16, 64),), budget="1GB"))
    for begin in (0, 16):
        for module in (model, planned):
            module.zero_grad()
            module(data[begin : begin + 16]).backward()
        for mine, eager in zip(planned.parameters(), model.parameters(), strict=True):
            assert mine.grad is not None and eager.grad is not None and torch.equal(mine.grad, eager.grad)
    assert "not as planned" not in caplog.text


def test_a_part_is_written_in_place() -> None:
    """As eager does: the least memory is not that of a copy for each assignment."""
    torch.manual_seed(0)
    model = Written()

    def inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        return (torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)),), {}

    graph = capture(model, *inputs(0)).graph
    offers = catalogue(graph)
    found = [{*offers.forward[op.name]} for op in graph.forward if "_scatter" in op.name]
    assert found == [*[{"aten", "in-place"}] * 3, {"aten"}], "the last takes a view of a copy of the input, and is it"
    assert not [op for op in graph.forward if op.target is torch.ops.aten.copy.default]
    compare_steps(model, at_smallest_budget(lambda budget: monet.plan(model, *inputs(0), budget=budget)), inputs)


class Repeated(nn.Module):
    """What is overwritten is also what is written, elements of it to other places."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        y, z = x * 2, x * 3
        return y.masked_scatter(x > 0, y).tanh() + z.index_add(0, rows, z).sin()


def test_a_tensor_is_not_written_to_itself_in_place() -> None:
    inputs = torch.randn(6, 8, requires_grad=True), torch.tensor([1, 0, 3, 2, 5, 4])
    offers = catalogue(capture(Repeated(), inputs).graph)
    found = {op.target: {*offers.forward[op.name]} for op in offers.graph.forward if not op.view}
    assert found[torch.ops.aten.masked_scatter.default] == found[torch.ops.aten.index_add.default] == {"aten"}
