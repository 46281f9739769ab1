"""Steps that keep values in Gist's storages, against eager's."""

from __future__ import annotations

import copy
import gc
import math
import traceback
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eager_reference import run_step
from torch import nn

import monet
from monet.capture import capture
from monet.capture.input_geometry import describe_inputs
from monet.errors import ExecutionError, PlanMismatch
from monet.native import allocator
from monet.ops.catalogue import catalogue
from monet.ops.measuring.profiling import profile
from monet.ops.measuring.signature import environment
from monet.ops.offers.offering import DENSITY, Offering
from monet.pipeline.lowering import Lowered, lower
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import place, unroll
from monet.planner.layout import Lifetime, layout
from monet.planner.replay import replay
from monet.planner.solution import Run, Runs, Stage
from monet.plans.format import ALIGNMENT
from monet.plans.plan import Plan
from monet.plans.verifier import verify


# Whole steps by plans made by hand.
class Lowering(nn.Module):
    """Convolution, ReLU, convolution; an operator more on both sides, so that no value is the step's own output."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        with torch.no_grad():  # a positive weight: the sign of an input is that of its activation
            self.first.weight.abs_()
            assert self.first.bias is not None
            self.first.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.relu(self.first(x)))).mean((2, 3))


def _lowered(model: nn.Module, args: tuple[torch.Tensor, ...], storage: Collection[str], density: float) -> Lowered:
    offers = catalogue(capture(model, args, {}).graph, Offering(storage=frozenset(storage), density=density))
    return lower(offers, profile(offers), name=type(model).__name__)


def _runs(lowered: Lowered, prefer: tuple[str, ...], again: Collection[str] = ()) -> Runs:
    """Each backward operator by the first of ``prefer`` that it has; their intermediates made in the forward pass,
    or, for the operators ``again``, by running these once more right before the first reader."""
    problem = lowered.problem
    maker = {i.id: i.operator for i in problem.intermediates}
    chosen = [
        next((n for n in prefer for i in op.implementations if i.name == n), op.implementations[0].name)
        for op in problem.backward
    ]
    made: list[str] = []
    stages: list[Stage] = []
    for op, name in zip(problem.backward, chosen, strict=True):
        wanted = [r for i in op.implementations if i.name == name for r in i.reads if r in maker and r not in made]
        made += wanted
        now = tuple(
            Run(f.id, f.implementations[0].name, tuple(w for w in wanted if maker[w] == f.id))
            for f in problem.forward
            if f.id in again and any(maker[w] == f.id for w in wanted)
        )
        stages.append(Stage(now, op.id, name))
    late = {i for stage in stages for run in stage.recompute for i in run.intermediates}
    forward = tuple(
        Run(op.id, op.implementations[0].name, tuple(m for m in made if maker[m] == op.id and m not in late))
        for op in problem.forward
    )
    return Runs(forward, tuple(stages))


def _plan(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    prefer: tuple[str, ...],
    storage: Collection[str] = (),
    density: float = DENSITY,
    again: Collection[str] = (),
) -> Plan:
    lowered = _lowered(model, args, storage, density)
    runs = _runs(lowered, prefer, again)
    replay(lowered.problem, runs)  # raises where one reads what is not there
    unrolled = unroll(calls(runs, lowered), lowered)
    placed = layout([Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers], alignment=ALIGNMENT)
    graph = lowered.catalogue.graph
    plan = Plan(
        budget_bytes=lowered.problem.fixed_bytes + placed.arena_bytes,
        arena_bytes=placed.arena_bytes,
        arena_bound_bytes=placed.bound_bytes,
        fixed_bytes=lowered.problem.fixed_bytes,
        fixed=lowered.fixed,
        steps=unrolled.steps,
        buffers=place(unrolled, placed.offsets),
        model={
            "name": type(model).__name__,
            "fingerprint": graph.fingerprint(),
            "inputs": describe_inputs(args, {}),
            "training": [module.training for module in model.modules()],
            "storage": sorted(storage),
            "density": density,
        },
        environment={"profile": environment(torch.device("cpu")), "threads": torch.get_num_threads()},
    )
    verify(plan)
    return plan


def _images(seed: int, shift: float = -0.1) -> torch.Tensor:
    return torch.randn(8, 3, 24, 24, generator=torch.Generator().manual_seed(seed)) + shift


def _model() -> nn.Module:
    torch.manual_seed(3)
    return Lowering()


SPARSE = ("from-sparse", "from-bits")


def _same_steps(
    model: nn.Module, planned: monet.MonetModule, make: Callable[[int], torch.Tensor], steps: int = 3
) -> None:
    modules = [model, planned]
    optimisers = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in modules]
    for step in range(steps):
        eager, mine = (run_step(m, o, ((make(step),), {}), step) for m, o in zip(modules, optimisers, strict=True))
        assert eager.tensors.keys() == mine.tensors.keys()
        for name, expected in eager.tensors.items():
            assert torch.equal(expected, mine.tensors[name]), f"{name} in step {step}"
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0


@pytest.mark.parametrize("again", [(), ("relu",)])
def test_sparse_step_equals_eager_bitwise(again: tuple[str, ...], tmp_path: Path) -> None:
    plan = _plan(_model(), (_images(0),), SPARSE, {"sparse"}, 0.6, again)
    node = {(step.kind, step.implementation) for step in plan.steps}
    assert {("recompute" if again else "forward", "sparse"), ("backward", "from-sparse")} <= node
    plan.save(tmp_path / "sparse.plan.json")
    plan = Plan.load(tmp_path / "sparse.plan.json")
    _same_steps(_model(), monet.MonetModule(_model(), plan), _images)


def test_sparse_storage_takes_the_place_of_the_dense_value() -> None:
    """Between the passes only mask and values are in memory; the dense value is there for its reader alone."""
    args = (_images(0),)
    dense, plan = _plan(_model(), args, ("from-bits",)), _plan(_model(), args, SPARSE, {"sparse"}, 0.4)
    border = next(i for i, step in enumerate(plan.steps) if step.kind == "backward")
    begin = plan.steps[border].begin
    kept = {b.value: b.bytes for b in plan.buffers if b.begin < begin <= b.end and b.first < border}
    count = 8 * 16 * 24 * 24
    assert kept["relu.sparse"] == count // 8 + 4 * math.ceil(0.4 * count)
    assert "relu" not in kept and "relu.bits" in kept
    whole = {b.value: b.bytes for b in dense.buffers if b.first < border and b.last >= border}
    assert whole["relu"] == 4 * count


def test_plan_without_its_storages_does_not_run() -> None:
    plan = _plan(_model(), (_images(0),), SPARSE, {"sparse"}, 0.6)
    model = {k: v for k, v in plan.model.items() if k not in ("storage", "density")}
    with pytest.raises(PlanMismatch, match="does not offer"):
        monet.MonetModule(_model(), replace(plan, model=model))


def test_an_error_may_outlive_the_arena() -> None:
    """A traceback that is kept, and collected after the module, frees nothing that lay in the arena."""
    planned = monet.MonetModule(_model(), _plan(_model(), (_images(0),), SPARSE, {"sparse"}, 0.6))
    arena = planned._step.runner.arena
    assert arena is not None
    with pytest.raises(ExecutionError) as caught:
        planned(_images(1, shift=3.0))
    errors: list[BaseException | None] = [caught.value, caught.value.__cause__]
    for error in errors:
        assert error is not None
        for frame, _ in traceback.walk_tb(error.__traceback__):
            held = [v for v in frame.f_locals.values() if isinstance(v, torch.Tensor)]
            assert not any(arena.contains(tensor.data_ptr()) for tensor in held), frame
    held = []
    del planned, arena
    gc.collect()


@pytest.mark.parametrize("again", [(), ("relu",)])
def test_step_that_is_too_full(again: tuple[str, ...]) -> None:
    """An error in the pass that packs; then a sparser step is right, and nothing of the broken one stays in memory."""
    planned = monet.MonetModule(_model(), _plan(_model(), (_images(0),), SPARSE, {"sparse"}, 0.6, again))
    _same_steps(_model(), monet.MonetModule(_model(), planned.plan), _images, 1)  # what is made once is made
    planned(_images(1)).sum().backward()
    planned.zero_grad(set_to_none=True)
    gc.collect()
    before = allocator.live_bytes()
    kind = "recompute" if again else "forward"
    said = (
        rf"step \d+ \({kind} relu\.sparse\): .* shape \(8, 16, 24, 24\) has .*, planned for 60 % .* larger density"
        r"(.|\n)*test_compressed_steps\.py"
    )
    for seed in range(3):
        full = _images(seed, shift=3.0)
        if again:
            loss = planned(full).sum()
            with pytest.raises(ExecutionError, match=said):
                loss.backward()
            del loss
        else:
            with pytest.raises(ExecutionError, match=said):
                planned(full)
        assert all(p.grad is None for p in planned.parameters())
    del full
    gc.collect()
    assert allocator.live_bytes() == before
    _same_steps(_model(), planned, _images)


class Normalised(nn.Module):
    """Convolution, batch norm, ReLU, convolution, batch norm: both kinds of readers of a 16-bit storage."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x)).mean((2, 3))


def test_half_step_is_near_eager() -> None:
    """Outputs and running statistics are eager's bit by bit; gradients are as near as the records say."""
    torch.manual_seed(5)
    model = Normalised()
    plan = _plan(model, (_images(0),), ("from-half", "from-bits"), {"half"})
    used = [step.implementation for step in plan.steps]
    assert used.count("half") == 3 and used.count("from-half") == 3
    planned = monet.MonetModule(copy.deepcopy(model), plan)
    modules = [model, planned]
    eager, mine = (run_step(m, torch.optim.SGD(m.parameters(), 0.0), ((_images(1),), {}), 1) for m in modules)
    largest = max(float(t.abs().max()) for n, t in eager.tensors.items() if n.startswith("gradient"))
    different = 0
    for name, expected in eager.tensors.items():
        if name.startswith("gradient"):
            assert float((expected - mine.tensors[name]).abs().max()) <= 2e-3 * largest, name
            different += not torch.equal(expected, mine.tensors[name])
        else:
            assert torch.equal(expected, mine.tensors[name]), name
    assert different > 0
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0
