"""Regions of a step: the same gradients, and no inner value in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_steps import assert_updates_are_eagers, run_in_turn
from peak_meter import measured_peak_bytes
from torch import Tensor, nn
from torch.nn import functional

import monet
from monet.base.graph import Graph, Operator, operator_inputs
from monet.capture import capture_once
from monet.errors import ConfigError, ExecutionError
from monet.ops.catalogue import catalogue
from monet.ops.fusion import compiling, offers
from monet.ops.fusion.fused import Fused, Slot, Step
from monet.ops.fusion.regions import LEAST_ELEMENTS, MOST_READ, with_regions
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Preparing, prepare
from monet.planner.search import Solving

aten = torch.ops.aten
ROWS, WIDTH, CLASSES = 256, 64, 96
assert ROWS * WIDTH >= LEAST_ELEMENTS


class Gated(nn.Module):
    """RMS norm, SwiGLU, a residual sum and cross entropy: what a decoder has between its products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return functional.cross_entropy(self.head(self.last(x)), labels)


class Scaled(nn.Module):
    """Layer scale, tanh, and values that leave a region or are read outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.first(x).sigmoid()
        product = inner * self.scale + x
        return self.second(product.tanh() * 2.0).square().mean(), inner


class Summed(nn.Module):
    """A weight that is used twice: its gradients are added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.exp(x * self.weight) + torch.sqrt(self.weight.square() + 1.0) * x).sum()


class Rotated(nn.Module):
    """Rotary embedding of heads, between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.before(x).view(2, ROWS // 2, 4, WIDTH // 4).transpose(1, 2)
        angles = torch.arange(ROWS // 2).outer(torch.linspace(0.1, 1.0, WIDTH // 8)).repeat(1, 2)
        first, second = heads.chunk(2, -1)
        turned = heads * angles.cos() + torch.cat((-second, first), -1) * angles.sin()
        made: Tensor = self.after(turned.transpose(1, 2).reshape(ROWS, WIDTH)).square().mean()
        return made


class Attended(nn.Module):
    """Softmax of masked products of rows, times a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query = self.before(x).view(-1, WIDTH, WIDTH)
        seen = torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril()
        scores = query @ query.transpose(1, 2) * 0.1 + torch.where(seen, 0.0, -1e4)
        made: Tensor = self.after(scores.softmax(-1) @ x.view(-1, WIDTH, WIDTH)).square().mean()
        return made


def _labels() -> Tensor:
    labels = torch.randint(CLASSES, (ROWS,))
    labels[::7] = -100
    return labels


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gated": (Gated, lambda: (torch.randn(ROWS, WIDTH), _labels())),
    "scaled": (Scaled, lambda: (torch.randn(ROWS, WIDTH),)),
    "summed": (Summed, lambda: (torch.randn(ROWS, WIDTH),)),
    "rotated": (Rotated, lambda: (torch.randn(ROWS, WIDTH),)),
    "attended": (Attended, lambda: (torch.randn(ROWS, WIDTH),)),
}


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_turn(monkeypatch)


def _planned(name: str, share: float, **offering: Any) -> tuple[nn.Module, PlanResult]:
    torch.manual_seed(0)
    model, make = MODELS[name][0](), MODELS[name][1]
    prepared = prepare(model, make(), {}, Preparing(cache=False), Offering(fused=True, **offering))
    budget = int(share * prepared.full_bytes)
    return model, plan_prepared(prepared, budget, Solving(time_limit_s=20.0))


def _compare(model: nn.Module, plan: monet.Plan, make: Callable[[], tuple[Tensor, ...]]) -> None:
    torch.manual_seed(1)
    inputs = make()
    found = []
    for step in (model, monet.MonetModule(model, plan)):
        model.zero_grad()
        outputs = step(*inputs)
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        loss.backward()
        found.append([outputs] if isinstance(outputs, Tensor) else list(outputs))
        found[-1] += [parameter.grad for parameter in model.parameters()]
    for eager, planned in zip(*found, strict=True):
        # Sums of up to 2^14 terms in another order, and a rounding less where a product is contracted.
        torch.testing.assert_close(planned, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [2.0, 1.5])
@pytest.mark.usefixtures("in_turn")
def test_gradients_are_eagers(name: str, share: float) -> None:
    model, result = _planned(name, share)
    assert {"fused", "in-turn"} & {step.implementation for step in result.plan.steps}
    _compare(model, result.plan, MODELS[name][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_the_compiler(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a plan from its file, and to the byte."""

    def kernels_alone(op: Operator, context: Context) -> list[Implementation]:
        return [run for run in offers.offers(op, context) if run.name == "fused"]

    record = replace(offers.RECORD, forward=kernels_alone, recompute=kernels_alone, backward=kernels_alone)
    monkeypatch.setattr(offers, "RECORD", record)
    model, result = _planned(name, 2.0)
    assert sum(step.implementation == "fused" for step in result.plan.steps) >= 3
    result.plan.save(tmp_path / "plan.json")
    loaded = monet.Plan.load(tmp_path / "plan.json")
    assert measured_peak_bytes(model, loaded, lambda seed: (MODELS[name][1](), {})) == loaded.peak_bytes
    _compare(model, loaded, MODELS[name][1])


def _captured(model: nn.Module, *inputs: Tensor) -> Graph:
    return capture_once(model, inputs, {}, gradients_leave=True, on_disk=False).graph


def _graph(name: str) -> Graph:
    torch.manual_seed(0)
    model, make = MODELS[name]
    return _captured(model(), *make())


def _programs(graph: Graph) -> dict[str, str]:
    """Value → what is called for it."""
    ops = (*graph.forward, *graph.backward)
    return {str(op.outputs[0]): str(op.target).split(".")[1] for op in ops if isinstance(op.target, Fused)}


def test_a_rotary_embedding_is_one_region_in_each_pass() -> None:
    graph = with_regions(_graph("rotated"))
    assert [*_programs(replace(graph, backward=())).values()] == ["mul_neg_cat_mul_add"]
    assert "mul_slice_slice_neg_mul_cat_add" in _programs(graph).values()
    assert not any(op.target is aten.cat.default for op in (*graph.forward, *graph.backward))


def test_a_softmax_is_in_a_region_with_its_mask() -> None:
    programs = set(_programs(with_regions(_graph("attended"))).values())
    assert {"mul_where_add__softmax", "_softmax_backward_data_mul"} <= programs


def test_a_region_reads_few_values_of_its_size() -> None:
    """All that it reads is in memory at once, where sums one after another hold two."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(10))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = sum(part(x) for part in self.parts).exp().mean()
            return made

    graph = _captured(Sums(), torch.randn(ROWS, WIDTH))
    sums = [op for op in with_regions(graph).forward if isinstance(op.target, Fused)]
    assert sums and all(len(operator_inputs(op)) <= MOST_READ for op in sums)


def test_copies_are_part_of_a_region() -> None:
    """Heads that are scaled, and put beside each other for a product."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.before(x).view(ROWS, 4, WIDTH // 4).transpose(0, 1).tanh().contiguous() * 2.0
            made: Tensor = self.after(heads.transpose(0, 1).reshape(ROWS, WIDTH)).square().mean()
            return made

    graph = _captured(Heads(), torch.randn(ROWS, WIDTH))
    programs = _programs(replace(with_regions(graph), backward=()))
    assert [*programs.values()] == ["tanh_clone_mul_transpose_clone"]


def test_what_is_inside_is_no_value() -> None:
    graph = _graph("gated")
    merged = with_regions(graph)
    programs = sorted(_programs(merged).values())
    assert any(program.startswith("pow_mean_add_rsqrt_mul") for program in programs)
    assert {"silu_mul", "mul_silu_backward"} <= set(programs)
    assert any(program.startswith("amax_sub_exp_sum_log") for program in programs)
    large = [v for v in merged.values.values() if v.storage == v.name and v.numel >= ROWS * WIDTH]
    before = [v for v in graph.values.values() if v.storage == v.name and v.numel >= ROWS * WIDTH]
    assert len(large) < len(before) - 10
    assert not any(op.target is aten._log_softmax.default for op in merged.forward)


def _require_order(graph: Graph) -> None:
    """Everything that is read is made before, and all that leaves the step is made."""
    made = {source.value for source in graph.sources} | {name for name in graph.tangents if name is not None}
    for op in (*graph.forward, *graph.backward):
        assert set(operator_inputs(op)) <= made, op.name
        made |= {name for name in op.outputs if name is not None}
    wanted = {name for name in (*graph.outputs, *graph.gradients.values()) if name is not None}
    assert wanted <= made and made <= set(graph.values)


@pytest.mark.parametrize("name", MODELS)
def test_everything_that_is_read_is_made_before(name: str) -> None:
    _require_order(with_regions(_graph(name)))


def test_output_is_in_no_region() -> None:
    graph = _graph("scaled")
    leaving = {graph.storage(name) for name in graph.outputs if name is not None}
    assert all(name in with_regions(graph).values for name in leaving)


def test_small_steps_have_no_regions() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Sigmoid())
    graph = _captured(model, torch.randn(2, 4))
    assert with_regions(graph) is graph


def test_regions_are_asked_for() -> None:
    graph = _graph("gated")
    assert catalogue(graph, Offering()).graph is graph
    assert catalogue(graph, Offering(fused=True)).graph is not graph
    with pytest.raises(ConfigError, match="exact and fused"):
        Offering(exact=True, fused=True)


def test_a_program_is_data() -> None:
    program = Fused(
        2, (Step(aten.mul.Tensor, (Slot(0), Slot(1)), ()), Step(aten.add.Tensor, (Slot(2), 1.0), ())), (3, 2)
    )
    same = Fused(2, (Step(aten.mul.Tensor, (Slot(0), Slot(1)), ()), Step(aten.add.Tensor, (Slot(2), 1.0), ())), (3, 2))
    assert program == same and hash(program) == hash(same)
    assert str(program) == "fused.mul_add.(2 inputs: aten.mul.Tensor(%0, %1); aten.add.Tensor(%2, 1.0) -> [3, 2])"
    x, y = torch.randn(5), torch.randn(5)
    assert all(torch.equal(a, b) for a, b in zip(program.run(x, y), (x * y + 1.0, x * y), strict=True))


def test_without_a_compiler_it_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    compiling.can_compile.cache_clear()
    graph = _graph("gated")
    assert catalogue(graph, Offering(fused=True)).graph is graph
    assert catalogue(graph, Offering(fused=True)).graph is graph
    assert [record.message for record in caplog.records if "C++ compiler" in record.message][1:] == []
    assert "planning without them" in caplog.text
    compiling.can_compile.cache_clear()


def test_what_the_compiler_fails_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("no such lowering")

    monkeypatch.setattr(compiling, "_compile", fail)
    program = Fused(1, (Step(aten.neg.default, (Slot(0),), ()),), (1,))
    with pytest.raises(ExecutionError, match="no such lowering; plan without fused"):
        program(torch.randn(3))


@pytest.mark.parametrize("last", [lambda x: x * 1.0, lambda x: torch.cat([x], 1)])
def test_what_may_be_an_input_is_no_result(last: Callable[[Tensor], Tensor]) -> None:
    """A compiler would return the input itself for x + 0."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(ROWS, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return last((x * self.weight).exp()).cumsum(1).sum()

    graph = _captured(Added(), torch.randn(ROWS, WIDTH))
    programs = [op.target for op in with_regions(graph).forward if isinstance(op.target, Fused)]
    assert programs
    assert not any(str(program.steps[-1]).endswith(", 1.0)") for program in programs)
    assert not any(program.steps[-1].target is aten.cat.default for program in programs)


@pytest.mark.slow
def test_strides_are_those_of_aten() -> None:
    program = Fused(2, (Step(aten.mul.Tensor, (Slot(0), Slot(1)), ()), Step(aten.tanh.default, (Slot(2),), ())), (3,))
    x = torch.randn(4, 6, 8).transpose(0, 2)
    for y in (torch.randn(8, 6, 4), torch.randn(6, 8, 4).transpose(0, 1), torch.randn(4)):
        (expected,), found = program.run(x, y), program(x, y)
        assert isinstance(found, Tensor) and found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.usefixtures("in_turn")
def test_updates_come_after_regions_that_read_the_weight(optimizer: str) -> None:
    torch.manual_seed(0)
    models, inputs = [MODELS["gated"][0]() for _ in range(2)], MODELS["gated"][1]()
    models[1].load_state_dict(models[0].state_dict())
    options = {"eps": 1e-2} if optimizer == "AdamW" else {}  # or it divides rounding by rounding
    steps = [getattr(torch.optim, optimizer)(model.parameters(), 0.1, **options) for model in models]
    trainer = monet.optimize(
        models[0], inputs, loss_fn=lambda loss, _: loss, optimizer=steps[0], budget="100%", fused=True, cache=False
    )
    assert trainer.plan.model["fused"] and {"update"} <= {step.kind for step in trainer.plan.steps}
    assert_updates_are_eagers(trainer, models[0], models[1], steps[1], MODELS["gated"][1], atol=1e-4)


def test_what_an_operator_reads_that_ends_no_region_is_made() -> None:
    """exp(x w) times 1 may be returned as it is, so that is no region, and the value must be there to be read."""
    graph = _graph("summed")
    (exp,) = (op for op in graph.forward if op.target is aten.exp.default)
    value = str(exp.outputs[0])
    (reader,) = (op for op in graph.backward if value in map(graph.storage, operator_inputs(op)))
    assert value not in with_regions(graph).values
    assert graph.storage(reader.args[1].name) == value
    times_one = replace(reader, args=(reader.args[1], 1.0))
    backward = tuple(times_one if op is reader else op for op in graph.backward)
    (weight,) = graph.gradients
    leaving = replace(graph, backward=backward, gradients={weight: str(reader.outputs[0])})
    _require_order(with_regions(leaving))
    assert value in with_regions(leaving).values


class Normed(nn.Module):
    """Batch norm of images, and layer norm over their channels, which aten copies first."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.batches, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.LayerNorm(16)
        self.after = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.after(self.norm(self.batches(self.before(x)).permute(0, 2, 3, 1)))
        return made


def _norms(make: nn.Module, *inputs: Tensor) -> list[Mapping[str, Implementation]]:
    graph = _captured(make, *inputs)
    offered = catalogue(graph, Offering(fused=True))
    norms = (aten.native_layer_norm.default, aten.native_batch_norm.default)
    found = [offered.forward[op.name] for op in graph.forward if op.target in norms]
    backward = [op for op in graph.backward if op.target is aten.native_layer_norm_backward.default]
    return found + [offered.backward[op.name] for op in backward]


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "LEAST_ALONE", 1)


@pytest.mark.usefixtures("all_sizes")
def test_norm_of_images_has_a_kernel_of_its_own() -> None:
    of_images = _norms(Normed(), torch.randn(2, 3, 10, 10))
    assert len(of_images) == 3 and all("fused" in named and "aten" in named for named in of_images)
    of_rows = _norms(nn.LayerNorm(16), torch.randn(20, 16))
    assert of_rows and not any("fused" in named for named in of_rows)


@pytest.mark.slow
@pytest.mark.usefixtures("all_sizes")
def test_norm_of_images_is_atens(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Normed()

    def kernel_alone(op: Operator, context: Context) -> list[Implementation]:
        return [replace(run, name="aten") for run in found(op, context)]

    found = offers.alone
    monkeypatch.setattr(offers, "alone", kernel_alone)
    prepared = prepare(model, (torch.randn(2, 3, 40, 40),), {}, Preparing(cache=False), Offering(fused=True))
    plan = plan_prepared(prepared, 2 * prepared.full_bytes).plan
    assert plan.model["fused"]
    assert measured_peak_bytes(model, plan, lambda seed: ((torch.randn(2, 3, 40, 40),), {})) == plan.peak_bytes
    x, gradients = torch.randn(2, 3, 40, 40), []
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    for step in (model, monet.MonetModule(model, plan)):
        model.load_state_dict(begun)
        model.zero_grad()
        step(x).square().mean().backward()
        gradients.append([*(parameter.grad for parameter in model.parameters()), *map(torch.clone, model.buffers())])
    for eager, planned in zip(*gradients, strict=True):
        torch.testing.assert_close(planned, eager, rtol=1e-4, atol=1e-5)
