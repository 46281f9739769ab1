"""Sparse and 16-bit storages: what is offered, implementations and whole steps against eager."""

from __future__ import annotations

import copy
import gc
import math
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from eager_reference import run_step
from evaluation import call, evaluate
from offer_cases import CASES
from torch import nn

import monet
from monet.capture import capture
from monet.capture.input_geometry import describe_inputs
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.native import allocator
from monet.ops.catalogue import catalogue
from monet.ops.compressed import sparse
from monet.ops.kernels.packed import sparse_unpack, sparse_words
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import profile
from monet.ops.measuring.signature import environment
from monet.ops.offers.implementation import Implementation
from monet.pipeline.lowering import Lowered, lower
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import place, unroll
from monet.planner.layout import Lifetime, layout
from monet.planner.replay import replay
from monet.planner.solution import Run, Solution, Stage
from monet.plans.plan import ALIGNMENT, Plan
from monet.plans.verifier import verify

BOTH = frozenset({"sparse", "half"})


class Clamped(nn.Module):
    """Convolutions after ReLU and ReLU6, one ReLU read by two of them and one by a sigmoid as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8)
        self.third, self.fourth, self.fifth = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.first(x) * 4)
        x = torch.relu(self.second(x))
        x = torch.relu(self.third(x) + self.fourth(x))
        out: torch.Tensor = self.fifth(x) + (x * x).mean()
        return out


TABLE = {**CASES, "clamped": (Clamped(), (torch.randn(4, 3, 16, 16),), {})}


@pytest.mark.parametrize("case", TABLE)
def test_default_catalogue_has_neither(case: str) -> None:
    """With storages, what was there stays there, in the same order; nothing else is added but theirs."""
    model, args, kwargs = TABLE[case]
    graph = capture(model, args, kwargs).graph
    default, more = catalogue(graph), catalogue(graph, storage=BOTH)
    assert default == catalogue(graph, storage=())
    assert list(more.values)[: len(default.values)] == list(default.values)
    assert all(n.endswith((".sparse", ".half")) for n in more.values.keys() - default.values.keys())
    assert default.forward == more.forward and default.recompute == more.recompute
    for node, named in more.backward.items():
        kept = [n for n in named if n not in {"from-sparse", "from-half"}]
        assert kept == list(default.backward[node]) == list(named)[: len(kept)]
        assert all(named[n] == default.backward[node][n] for n in kept)
    for node, saved in more.intermediates.items():
        assert tuple(s for s in saved if s.kind not in BOTH) == default.intermediates.get(node, ())
    assert not any(
        s.kind == "half" for saved in catalogue(graph, exact=True, storage=BOTH).intermediates.values() for s in saved
    )
    exact = catalogue(graph, exact=True, storage=BOTH)
    assert all(i.exact for named in exact.backward.values() for i in named.values())


def test_unknown_storage_or_density() -> None:
    graph = capture(nn.Linear(2, 2), (torch.randn(1, 2),), {}).graph
    with pytest.raises(ConfigError, match="'quarter' is none of half, sparse"):
        catalogue(graph, storage={"sparse", "quarter"})
    for density in (0.0, -1.0, 1.01, math.nan):
        with pytest.raises(ConfigError, match="density"):
            catalogue(graph, storage={"sparse"}, density=density)


@pytest.mark.parametrize("case", ["residual", "clamped", "inverted"])
def test_every_implementation_computes_what_eager_does(case: str) -> None:
    """From a sparse storage bit by bit, from a 16-bit one within what its record says."""
    model, args, kwargs = TABLE[case]
    torch.manual_seed(0)
    captured = capture(model, args, kwargs)
    offers = catalogue(captured.graph, storage=BOTH, density=1.0)
    tried = {"from-sparse": 0, "from-half": 0}
    with torch.no_grad():
        env = evaluate(offers, captured, model, [*args, *kwargs.values()])
        for node, named in offers.backward.items():
            plain = next(iter(named.values()))
            for name in tried.keys() & named.keys():
                implementation = named[name]
                results = call(implementation, env, set())
                for output, result in zip(implementation.outputs, results, strict=True):
                    if output is None:
                        continue
                    expected, what = env[output], f"{node} by {name}: {output}"
                    assert result.shape == expected.shape and result.stride() == expected.stride(), what
                    if implementation.exact:
                        assert name == "from-sparse" and torch.equal(result, expected), what
                    else:
                        error = (result - expected).abs().max() / _magnitude(plain, env, output)
                        assert float(error) <= implementation.tolerance, f"{what}: {float(error)}"
                    tried[name] += 1
    assert tried["from-half"] >= 3 and tried["from-sparse"] >= {"residual": 2, "clamped": 4, "inverted": 2}[case]


def _magnitude(plain: Implementation, env: Mapping[str, torch.Tensor], output: str) -> torch.Tensor:
    """What an error is relative to: for a convolution's gradient, the sum of the magnitudes of its terms."""
    if plain.call is not torch.ops.aten.convolution_backward.default:
        return env[output].abs().max()
    results = call(plain, {n: env[n].abs() for n in plain.inputs()}, set())
    largest: torch.Tensor = results[plain.outputs.index(output)].abs().max()
    return largest


def test_what_is_offered() -> None:
    """A sparse storage for ReLU and ReLU6 before convolutions; none where something else reads the dense value."""
    model, args, kwargs = TABLE["clamped"]
    offers = catalogue(capture(model, args, kwargs).graph, storage=BOTH)
    kinds = {node: [s.kind for s in saved] for node, saved in offers.intermediates.items()}
    assert kinds == {
        "hardtanh": ["sign-bits", "sparse", "half"],
        "relu": ["sign-bits", "sparse", "half"],
        "relu_1": ["sign-bits"],
    }
    readers = {node for node, named in offers.backward.items() if "from-sparse" in named}
    assert len(readers) == 3
    for saved in offers.intermediates["relu"]:
        count = offers.values["relu"].numel
        size = {"sign-bits": count // 8, "sparse": count // 8 + 4 * int(sparse.DENSITY * count), "half": 2 * count + 2}[
            saved.kind
        ]
        assert saved.value.storage_bytes == size


def test_density_sets_the_bytes() -> None:
    model, args, kwargs = TABLE["clamped"]
    graph = capture(model, args, kwargs).graph
    for density in (0.001, 0.25, 1.0):
        offers = catalogue(graph, storage={"sparse"}, density=density)
        count = offers.values["relu"].numel
        assert offers.values["relu.sparse"].storage_bytes == 4 * math.ceil(count / 32) + 4 * math.ceil(density * count)


@pytest.mark.parametrize("count", [1, 33, 1000, sparse._SAMPLE + 7, 2 * sparse._SAMPLE + 12_345])
@pytest.mark.parametrize("density", [0.01, 0.5, 1.0])
def test_samples_are_as_full_as_planned(count: int, density: float) -> None:
    capacity = math.ceil(density * count)
    flat = torch.empty(count)
    sparse._fill(flat, capacity)
    kept = int((flat != 0).sum())
    assert kept <= capacity and kept >= capacity - 1 - count / 1000
    packed = torch.empty(sparse_words(count) + capacity, dtype=torch.int32)
    sparse._fill_packed(packed, (None, packed, [count], [1]), {})
    assert torch.equal(sparse_unpack(packed, (count,), (1,)), flat)


def test_measuring_runs_on_storages_as_full_as_planned() -> None:
    """Time depends on the number of values, and noise in every element would not fit."""
    model, args, kwargs = TABLE["clamped"]
    offers = catalogue(capture(model, args, kwargs).graph, storage={"sparse"}, density=0.3)
    value = offers.values["relu"]
    capacity = math.ceil(0.3 * value.numel)
    (make,) = (s.implementation for s in offers.intermediates["relu"] if s.kind == "sparse")
    bench = Bench()  # its tensors must not outlive it
    bench.measure(make, offers.values)
    (kept,) = (int((tensor != 0).sum()) for tensor in bench._inputs.values())
    assert capacity - 1 <= kept <= capacity
    read = next(
        named["from-sparse"]
        for named in offers.backward.values()
        if "from-sparse" in named and "relu.sparse" in named["from-sparse"].inputs()
    )
    bench.measure(read, offers.values)
    (kept,) = (
        int((sparse_unpack(tensor, value.shape, value.stride) != 0).sum())
        for tensor in bench._inputs.values()
        if tensor.dtype is torch.int32
    )
    assert capacity - 1 <= kept <= capacity


def test_measured_memory() -> None:
    """Packing asks for the storage alone; a reader for eager's requests and the dense tensor."""
    model, args, kwargs = TABLE["residual"]
    offers = catalogue(capture(model, args, kwargs).graph, storage=BOTH, density=0.3)
    measured = profile(offers)
    tried = 0
    for saved in (s for group in offers.intermediates.values() for s in group if s.kind in BOTH):
        (request,) = measured.of(saved.implementation, offers).requests
        assert request.bytes == saved.value.storage_bytes and request.output == 0 and request.end is None
    for named in offers.backward.values():
        for name in {"from-sparse", "from-half"} & named.keys():
            plain, unpacking = measured.of(named["aten"], offers), measured.of(named[name], offers)
            dense = next(offers.values[n].storage_bytes for n in named["aten"].inputs()[1:])
            asked, before = (
                sorted((r.bytes, r.output) for r in m.requests if r.output is None) for m in (unpacking, plain)
            )
            assert (dense, None) in asked
            asked.remove((dense, None))
            assert asked == before
            assert unpacking.time_s > 0
            tried += 1
    assert tried >= 4


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
    offers = catalogue(capture(model, args, {}).graph, storage=storage, density=density)
    return lower(offers, profile(offers), name=type(model).__name__)


def _solution(lowered: Lowered, prefer: tuple[str, ...], again: Collection[str] = ()) -> Solution:
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
    return Solution(forward, tuple(stages), 0.0, 0.0, "none", 0, "by hand", 0.0, 0.0)


def _plan(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    prefer: tuple[str, ...],
    storage: Collection[str] = (),
    density: float = sparse.DENSITY,
    again: Collection[str] = (),
) -> Plan:
    lowered = _lowered(model, args, storage, density)
    solution = _solution(lowered, prefer, again)
    replay(lowered.problem, solution)  # raises where the solution reads what is not there
    unrolled = unroll(calls(solution, lowered), lowered)
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
        r"(.|\n)*test_compressed\.py"
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
