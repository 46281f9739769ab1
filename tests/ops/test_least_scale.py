"""Gradients that divide by a scale: not planned where the scale is small now, refused where it has become small."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from eager_reference import compare_steps
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from monet.capture import Captured, capture
from monet.errors import PlanMismatch
from monet.native import allocator
from monet.ops.catalogue import SCALE_MARGIN, Catalogue, catalogue
from monet.ops.families.normalization.least_scale import LEAST_SCALE
from monet.ops.kernels.scales import smallest_scale
from monet.ops.measuring.profiling import implementations
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering
from monet.pipeline.current_scales import present_scales
from monet.pipeline.planning import plan_smallest
from monet.pipeline.preparation import prepare, prepare_whole
from monet.planner.search import Solving
from monet.plans.plan import Plan
from monet.step.training_step.whole_step import capture_whole_step


class Branches(nn.Module):
    """Residual branches that each end with a norm, as torchvision's with ``zero_init_residual``."""

    def __init__(self, norm: Any, depth: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.convolutions = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(depth))
        self.norms = nn.ModuleList(norm() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + torch.relu(norm(convolution(x)))
        return x


class Scaled(nn.Module):
    """A norm whose scale is computed, so that nobody can look at it before a step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x * 2.0, (6,), self.weight * 3.0) * 2.0


NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
    "group": lambda: nn.GroupNorm(2, 8),
}
ALL = {**NORMS, "rms": lambda: nn.RMSNorm(10)}  # without a shift


def _images(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return (torch.randn(3, 3, 10, 10, generator=torch.Generator().manual_seed(seed)),), {}


def _model(norm: str) -> Branches:
    torch.manual_seed(0)
    return Branches(ALL[norm])


def _zero(norm: nn.Module) -> None:
    nn.init.zeros_(norm.get_parameter("weight"))


def _guarded(offers: Any) -> list[Implementation]:
    return [i for i in implementations(offers) if i.guard is not None]


def _scales(offers: Any, captured: Captured) -> set[str]:
    """Names of the parameters that some offer divides by."""
    names = {s.value: s.target for s in captured.graph.sources}
    return {names[i.guard.scale] for i in _guarded(offers) if i.guard is not None}


def _smallest(model: nn.Module) -> Plan:
    return plan_smallest(prepare(model, *_images(0)), solving=Solving(time_limit_s=5)).plan


@pytest.mark.parametrize("norm", ALL)
@pytest.mark.sampled(2)
def test_a_scale_of_zero_is_planned_around(norm: str) -> None:
    model = _model(norm)
    captured = capture(model, *_images(0))
    assert len({i.guard for i in _guarded(catalogue(captured.graph))}) == 2
    _zero(model.norms[1])
    offers = catalogue(captured.graph, scales=present_scales(model, captured))
    assert _scales(offers, captured) == {"norms.0.weight"}
    compare_steps(model, _smallest(model), _images)


@pytest.mark.parametrize("norm", NORMS)
def test_a_shift_that_is_large_beside_the_scale_is_planned_around(norm: str) -> None:
    """A scale of 1 and a shift of 100: the output has two digits less of the input than without."""
    model = _model(norm)
    captured = capture(model, *_images(0))
    nn.init.constant_(model.norms[0].get_parameter("bias"), -100.0)
    offers = catalogue(captured.graph, scales=present_scales(model, captured))
    assert _scales(offers, captured) == {"norms.1.weight"}


@pytest.fixture
def from_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans take the gradient of every norm that they may from its output: nothing else is offered."""

    def only(*args: Any, **options: Any) -> Catalogue:
        offers: Catalogue = catalogue(*args, **options)
        backward = {
            # The planner asks for one exact implementation of everything, to compare costs with.
            node: {n: replace(i, exact=True) for n, i in named.items() if i.guard is not None} or named
            for node, named in offers.backward.items()
        }
        return replace(offers, backward=backward)

    monkeypatch.setattr("monet.pipeline.preparation.catalogue", only)


@pytest.mark.usefixtures("from_outputs")
@pytest.mark.parametrize("norm", ALL)
def test_steps_from_outputs_equal_eager_and_refuse_a_scale_that_shrinks(norm: str) -> None:
    model = _model(norm)
    plan = _smallest(model)
    assert sum(step.implementation.startswith("from-output") for step in plan.steps) >= 2
    planned = compare_steps(model, plan, _images)
    for module in planned.norms:
        module.weight.data[3] = 0.0 if norm == "rms" else -1e-4
    said = r"0 .*at least 1e-18" if norm == "rms" else r"0\.0001.*at least 0\.005"
    with pytest.raises(PlanMismatch, match=rf"norms\.\d\.weight has a magnitude of {said}"):
        planned(*_images(1)[0])


def test_the_limit_when_planning_is_above_that_of_a_step() -> None:
    for dtype, least in LEAST_SCALE.items():
        model = nn.LayerNorm(6).to(dtype)
        x = torch.randn(4, 6).to(dtype)
        captured = capture(nn.Sequential(nn.Linear(6, 6).to(dtype), model, nn.Tanh()), (x,))
        whole = nn.Sequential(nn.Linear(6, 6).to(dtype), model, nn.Tanh())
        for factor, offered in ((1.01, True), (0.99, False)):
            nn.init.constant_(model.weight, -SCALE_MARGIN * least * factor)
            offers = catalogue(captured.graph, scales=present_scales(whole, captured))
            assert bool(_guarded(offers)) is offered
            assert all(i.guard is not None and i.guard.least == least for i in _guarded(offers))
        nn.init.constant_(model.weight, float("nan"))
        assert not _guarded(catalogue(captured.graph, scales=present_scales(whole, captured)))


def test_a_computed_scale_is_never_divided_by() -> None:
    offers = catalogue(capture(Scaled(), (torch.randn(4, 6, requires_grad=True),)).graph)
    assert not _guarded(offers) and all(i.exact for i in implementations(offers))


class Masked(nn.Module):
    """Activations times an input, a buffer and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.register_buffer("kept", torch.ones(6))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layer(x) * mask)
        x = torch.tanh(self.layer(x) * self.kept)
        return torch.tanh(self.layer(x) * self.weight)


def test_only_parameters_are_divided_by() -> None:
    """A mask has zeros in some steps."""
    captured = capture(Masked(), (torch.randn(4, 6), torch.ones(4, 6).requires_grad_()))
    assert _scales(catalogue(captured.graph), captured) == {"weight"}


def test_whole_steps_look_at_scales_too() -> None:
    model = _model("batch")
    _zero(model.norms[1])
    step = capture_whole_step(
        model, _images(0)[0][0], torch.zeros(3, 8, 10, 10), loss_fn=nn.functional.mse_loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )  # fmt: skip
    assert _scales(prepare_whole(step).lowered.catalogue, step.captured) == {"model.norms.0.weight"}


def test_a_model_without_contents_is_prepared() -> None:
    """Nothing is known of fake scales; each step of the real model looks at them."""
    with FakeTensorMode():
        model = _model("batch")
        prepared = prepare(model, (torch.empty(3, 3, 10, 10),), {})
    assert _guarded(prepared.lowered.catalogue)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("dtype", LEAST_SCALE)
def test_looking_at_a_scale_asks_for_no_memory(dtype: torch.dtype, shifted: bool) -> None:
    """It happens in each step, outside of the arena: what it asked for would be above the promised peak."""
    for scale in (
        torch.randn(300), torch.randn(3, 100), torch.randn(300)[::3], torch.empty(0),
        torch.tensor([1.0, torch.nan, 0.0]),
    ):  # fmt: skip
        scale = scale.to(dtype)
        shift = torch.randn(scale.shape).mul_(3) if shifted else None
        with allocator.Recording() as recording:
            found = smallest_scale(scale, shift)
        assert not recording.events
        size = scale.double().abs() / (1.0 if shift is None else shift.double().abs().clamp_min(1.0))
        expected = size.min() if size.numel() else torch.tensor(torch.inf)
        torch.testing.assert_close(torch.tensor(found), expected.float(), equal_nan=True)


def test_a_shift_that_is_no_number_is_not_divided_by() -> None:
    scale, shift = torch.ones(3), torch.tensor([0.0, torch.nan, 2.0])
    assert math.isnan(smallest_scale(scale, shift))


class Sliced(nn.Module):
    """Batch norm whose scale and shift are columns of one tensor: not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3)
        self.columns = nn.Parameter(torch.rand(6, 2) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        for _ in range(3):
            x = nn.functional.batch_norm(x, None, None, self.columns[:, 0], self.columns[:, 1], training=True)
            x = nn.functional.gelu(x)
        return x


def test_parameters_with_gaps_are_right() -> None:
    torch.manual_seed(0)
    model = Sliced()
    compare_steps(
        model,
        plan_smallest(prepare(model, *_images(0), offering=Offering(exact=True)), solving=Solving(time_limit_s=5)).plan,
        _images,
    )
