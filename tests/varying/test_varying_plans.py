"""Plans for every shape up to one: equal to eager at each, with every request in its place and within the promise."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_reference import assert_same_gradients, compare_steps, is_exact
from slow_cases import slow_but
from small_models import Decoder, Residual, Transformer, tokens
from torch import nn
from torch.export import Dim

import monet
from monet.base.sizes import graph_at, numbers_at
from monet.capture import capture
from monet.capture.varying_inputs import largest, ranges_of
from monet.errors import CaptureError, ConfigError, InvalidPlan, PlanMismatch
from monet.native import allocator
from monet.plans.document import plan_text
from monet.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("hasty_orders")

BATCH, LENGTH, SIDE = Dim("batch", max=6), Dim("length", max=24), Dim("side", max=40)
SEVERAL = [(6, 24), (5, 9), (2, 7)]
SHAPES = [(6, 24), (1, 9), (5, 2), (3, 23), (6, 24), (2, 16), (6, 5)]


def texts(seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]:
    shape = SHAPES[seed % len(SHAPES)]
    return (tokens(shape, seed), tokens(shape, seed + 100)), {}


def images(seed: int) -> tuple[tuple[torch.Tensor], Mapping[str, torch.Tensor]]:
    batch, side = [(6, 40), (2, 17), (5, 32), (2, 40)][seed % 4]
    return (torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed)),), {}


class Assigns(nn.Module):
    """To parts of a tensor, some of which are as long as a text."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.linear(x), x.clone()
        y[:, 1:, ::2] = 0.5
        y[:, 0] = y[:, -1] * 2
        z[:, :1] = 1.0
        padded = x.new_zeros(x.shape[0], 24, 8)  # at the largest length, the part is all of it
        padded[:, : x.shape[1], :3] = y[:, :, :3]
        return torch.where(y > 0, y, z).tanh() + z * padded.sum(1, keepdim=True)


def rows(seed: int) -> tuple[tuple[torch.Tensor], Mapping[str, torch.Tensor]]:
    return (torch.randn(*SEVERAL[seed % 3], 8, generator=torch.Generator().manual_seed(seed)),), {}


TEXTS = {"tokens": {0: BATCH, 1: LENGTH}, "labels": [BATCH, LENGTH]}
CASES: dict[str, tuple[Any, Any, Any]] = {
    "decoder": (Decoder, texts, TEXTS),
    "images": (Residual, images, {"x": [BATCH, None, SIDE, SIDE]}),
    "assignments": (Assigns, rows, {"x": [BATCH, LENGTH, None]}),
    # Its attention takes another way for one text.
    "dropout": (Transformer, lambda seed: ((tokens(SEVERAL[seed % 3], seed),), {}), {"tokens": [BATCH, LENGTH]}),
}


def planned(case: str, budget: str = "100%", **options: Any) -> tuple[nn.Module, Any, Plan]:
    build, inputs, dynamic = CASES[case]
    torch.manual_seed(0)
    model = build()
    args, kwargs = inputs(1)
    plan = monet.plan(model, args, kwargs, budget=budget, dynamic=dynamic, time_limit_s=5, cores=1, **options)
    return model, inputs, plan


@pytest.mark.parametrize("case", slow_but(["decoder", "images"], ["decoder", "images", "dropout"]))
def test_the_graph_is_that_of_every_shape(case: str) -> None:
    build, inputs, dynamic = CASES[case]
    model = build()
    args, kwargs = inputs(1)
    ranges = ranges_of(model, args, kwargs, dynamic)
    captured = capture(model, *largest(args, kwargs, ranges), ranges=ranges)
    assert captured.ranges is not None
    for seed in range(4):
        args, _ = inputs(seed)
        shape = {
            name: args[position].shape[axis]
            for position, axes in ranges.inputs.items() for axis, name in enumerate(axes) if name
        }  # fmt: skip
        assert captured.ranges.contains(shape)
        alone, here = capture(model, args).graph, graph_at(captured.graph, numbers_at(captured.ranges, shape))
        number = {name: k for graph in (alone, here) for k, name in enumerate(graph.values)}
        assert len(alone.values) == len(here.values)
        for mine, theirs in zip((*here.forward, *here.backward), (*alone.forward, *alone.backward), strict=True):
            assert mine.target == theirs.target
            for one, other in zip(mine.outputs, theirs.outputs, strict=True):
                if one is None or other is None:
                    assert one is other
                    continue
                a, b = here.values[one], alone.values[other]
                assert (a.shape, a.stride, a.dtype, a.storage_bytes) == (b.shape, b.stride, b.dtype, b.storage_bytes)
        assert number


@pytest.mark.parametrize("case", slow_but(["decoder", "images"], CASES))
@pytest.mark.parametrize("budget", slow_but(["96%"], ["100%", "96%"]))
def test_every_shape_equals_eager(case: str, budget: str) -> None:
    model, inputs, plan = planned(case, budget)
    compare_steps(model, plan, inputs, steps=7 if case == "decoder" else 4)


@pytest.mark.parametrize("case", ["decoder", "images", "assignments"])
@pytest.mark.sampled(3)
def test_exact_plans_are_bitwise_at_every_shape(case: str) -> None:
    model, inputs, plan = planned(case, "95%", exact=True)
    assert is_exact(compare_steps(model, plan, inputs, steps=4))


@pytest.mark.skipif(not allocator.available(), reason="peaks are measured by the native allocator")
def test_no_shape_exceeds_the_promise() -> None:
    model, inputs, plan = planned("decoder", "75%")
    module = monet.MonetModule(model, plan)
    module(*inputs(0)[0]).backward()
    arena = module._step.runner.arena
    assert arena is not None
    held = allocator.live_bytes() - plan.arena_bytes
    for shape in SHAPES:
        given = tokens(shape, 1), tokens(shape, 2)
        module.zero_grad(set_to_none=True)
        allocator.reset_peak()
        loss = module(*given)
        loss.backward()
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        # Gradients lie in the arena until their last holder lets go of them; a loss has its own few bytes.
        assert allocator.peak_bytes() <= held + plan.arena_bytes + gradients + 4096
    assert arena.statistics().misses == 0


def test_a_shape_beyond_the_plan_is_refused_with_what_it_is_for() -> None:
    model, _, plan = planned("decoder")
    module = monet.MonetModule(model, plan)
    with pytest.raises(PlanMismatch, match="batch is 7, and the plan is for 1 to 6"):
        module(tokens((7, 4)), tokens((7, 4)))
    with pytest.raises(PlanMismatch, match="has size 6 in axis 1, and length is 5 in another input"):
        module(tokens((2, 5)), tokens((2, 6)))
    with pytest.raises(PlanMismatch, match="axes"):
        module(tokens((2, 5)).flatten(), tokens((2, 5)))
    loss = module(tokens((2, 5)), tokens((2, 5)))
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
def test_a_pending_step_keeps_its_shape_when_another_call_is_checked() -> None:
    model, _, plan = planned("decoder", exact=True)
    module, eager = monet.MonetModule(model, plan), copy.deepcopy(model)
    given = tokens((3, 7), 1), tokens((3, 7), 2)
    loss = module(*given)
    module.check((tokens((6, 20)), tokens((6, 20))), {})
    loss.backward()
    eager(*given).backward()
    assert_same_gradients(model, eager)


def test_a_plan_is_saved_and_says_its_range(tmp_path: Path) -> None:
    model, inputs, plan = planned("decoder")
    path = tmp_path / "plan.json"
    plan.save(path)
    again = Plan.of(path)
    dynamic = dict(again.model["dynamic"])
    bytes_of = dynamic.pop("bytes")
    assert dynamic == {
        "sizes": {"batch": [1, 6], "length": [1, 24]}, "axes": {"0": ["batch", "length"], "1": ["batch", "length"]},
    }  # fmt: skip
    said = [buffer for buffer in again.buffers if buffer.value in bytes_of]
    assert len(said) > 15
    assert all(eval(bytes_of[buffer.value], {"d0": 6, "d1": 24}) == buffer.bytes for buffer in said)
    small = monet.plan(model, (tokens((3, 10)), tokens((3, 10))), budget="10GB", exact=True, time_limit_s=2, cores=1)
    common = [buffer for buffer in small.buffers if buffer.value in bytes_of]
    assert len(common) > 15
    assert all(eval(bytes_of[buffer.value], {"d0": 3, "d1": 10}) == buffer.bytes for buffer in common)
    more = {**bytes_of, said[0].value: "7000000 - d0 * d1"}
    other = replace(plan, model={**plan.model, "dynamic": {**again.model["dynamic"], "bytes": more}})
    with pytest.raises(InvalidPlan, match="are more at batch = 1, length = 1 than at the largest"):
        Plan.of_content(plan_text(other).encode())
    compare_steps(model, again, inputs, steps=2)
    for wrong in ([0, 6], [7, 6], ["a", 6], [1], [True, 6]):
        sizes = {**plan.model["dynamic"]["sizes"], "batch": wrong}
        other = replace(plan, model={**plan.model, "dynamic": {**plan.model["dynamic"], "sizes": sizes}})
        with pytest.raises(InvalidPlan, match="sizes"):
            Plan.of_content(plan_text(other).encode())
    sizes = {**plan.model["dynamic"]["sizes"], "width": [1, 6]}
    other = replace(plan, model={**plan.model, "dynamic": {**plan.model["dynamic"], "sizes": sizes}})
    with pytest.raises(PlanMismatch, match="vary are not of its inputs: none has 'width'"):
        monet.MonetModule(model, other)


class Shrinking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        rest = torch.zeros(x.shape[0], 30 - x.shape[1], 4) + self.embed.weight.sum()  # larger for a shorter text
        joined: torch.Tensor = torch.cat([x, rest * 2], 1).sin()
        return joined


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).relu() if x.shape[0] > 3 else self.linear(x).tanh()
        return y


def test_what_is_larger_for_a_smaller_shape_is_refused_by_its_line() -> None:
    with pytest.raises(CaptureError, match="maybe more at batch = 2, length = 1 than at the largest") as refused:
        monet.plan(Shrinking(), tokens((2, 8)), budget="100%", dynamic={"tokens": [BATCH, LENGTH]})
    assert "test_varying_plans.py" in str(refused.value)


def test_a_branch_on_a_size_bounds_what_the_plan_holds_for() -> None:
    model = Branching()
    plan = monet.plan(model, torch.randn(5, 4), budget="100%", dynamic={"x": {0: BATCH}}, time_limit_s=5)
    module = monet.MonetModule(model, plan)
    x = torch.randn(4, 4)
    assert torch.equal(module(x), model(x).detach())
    with pytest.raises(PlanMismatch, match=r"does not hold for batch = 3.*batch > 3"):
        module(torch.randn(3, 4))


@pytest.mark.parametrize(
    ("dynamic", "said"),
    [
        ({}, "must be as"),
        ({"nothing": {0: BATCH}}, "'nothing', and the call has tokens, labels"),
        ({"tokens": {5: BATCH}}, "no axis 5"),
        ({"tokens": {0: 3}}, "torch.export.Dim"),
        ({"tokens": {0: Dim("batch")}}, "no maximum"),
        ({"tokens": {0: Dim("batch", max=2)}}, "size 3, above the maximum of batch, 2"),
        ({"tokens": {0: BATCH}, "labels": {0: Dim("batch", max=9)}}, "two dimensions called 'batch'"),
        ({"tokens": [None, None]}, "no axis of any argument varies"),
    ],
)
def test_a_wrong_range_is_told(dynamic: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        monet.plan(Decoder(), (tokens((3, 7)), tokens((3, 7))), budget="100%", dynamic=dynamic)


class Scaled(nn.Module):
    """Calculates with sizes in floats, as attention by length and means by hand do. ``returns``: also returns one."""

    def __init__(self, *, returns: bool = False) -> None:
        super().__init__()
        self.query, self.key, self.returns = nn.Linear(4, 4), nn.Linear(4, 4), returns

    def forward(self, x: torch.Tensor) -> Any:
        scores = torch.bmm(self.query(x).tanh(), self.key(x).transpose(1, 2)) / x.shape[1] ** 0.5
        mean: torch.Tensor = torch.bmm(scores.softmax(-1), x).sum(0) * (1.0 / x.shape[0]) + 0.5 * x.shape[1]
        return (mean, 0.5 * x.shape[1]) if self.returns else mean


def test_floats_of_sizes_are_those_of_each_shape() -> None:
    torch.manual_seed(0)
    model, dynamic = Scaled(), {"x": {0: BATCH, 1: LENGTH}}
    plan = monet.plan(model, torch.randn(3, 5, 4), budget="100%", dynamic=dynamic, exact=True, time_limit_s=5, cores=1)

    def inputs(seed: int) -> tuple[tuple[torch.Tensor], Mapping[str, torch.Tensor]]:
        shape = [(6, 24), (2, 7), (5, 23)][seed % 3]
        return (torch.randn(*shape, 4, generator=torch.Generator().manual_seed(seed)),), {}

    assert is_exact(compare_steps(model, plan, inputs, steps=3))
    with pytest.raises(CaptureError, match="returns a size that varies"):
        monet.plan(Scaled(returns=True), torch.randn(3, 5, 4), budget="100%", dynamic=dynamic)


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x) if x.sum() > 0 else self.layer(-x)
        return made


def test_what_depends_on_values_is_told_with_its_line() -> None:
    with pytest.raises(CaptureError) as refused:
        monet.plan(Deciding(), torch.randn(3, 4), budget="100%", dynamic={"x": {0: BATCH}})
    said = str(refused.value)
    assert "plan each shape: it cannot be traced: a Python value or shape depends on the values of tensors" in said
    assert "if x.sum() > 0" in said and "GuardOnDataDependent" not in said


def test_what_is_made_for_one_shape_is_refused_beside_a_range() -> None:
    with pytest.raises(ConfigError, match="fused"):
        planned("decoder", fused=True)
    recurrent = nn.LSTM(4, 4)
    with pytest.raises(CaptureError, match="recurrent layers"):
        monet.plan(recurrent, torch.randn(5, 2, 4), budget="100%", dynamic={"input": {1: BATCH}})


def test_apply_runs_every_shape_by_one_plan() -> None:
    torch.manual_seed(0)
    model = Decoder()
    eager = copy.deepcopy(model)
    monet.apply(model, budget="80%", dynamic=TEXTS, exact=True, time_limit_s=5, progress=False)
    for seed, shape in enumerate([*SHAPES, (6, 24), (2, 3)]):
        given = tokens(shape, seed), tokens(shape, seed + 50)
        model.zero_grad()
        eager.zero_grad()
        loss, expected = model(given[0], given[1]), eager(*given)
        loss.backward()
        expected.backward()
        assert torch.equal(loss, expected)
        assert_same_gradients(model, eager)
    applied = monet.applied(model)
    assert applied is not None and (applied.planned_calls, applied.eager_calls, len(applied.plans)) == (9, 0, 2)
    model(tokens((7, 3)), tokens((7, 3))).backward()  # larger than the range
    assert applied.eager_calls == 1 and "batch is 7" in str(applied)


@pytest.mark.slow
def test_apply_makes_a_plan_more_where_a_size_of_one_is_run_in_another_way() -> None:
    model = Transformer()
    monet.apply(model, budget="100%", dynamic={"tokens": [BATCH, LENGTH]}, time_limit_s=5, progress=False)
    for shape in ((4, 7), (1, 7), (1, 20), (6, 24), (1, 3)):
        model(tokens(shape)).sum().backward()
    applied = monet.applied(model)
    assert applied is not None and (applied.planned_calls, applied.eager_calls, len(applied.plans)) == (5, 0, 2)


@pytest.mark.skipif(not allocator.available(), reason="needs the native allocator")
def test_a_request_that_may_be_smaller_has_its_place() -> None:
    arena = allocator.Arena([[(4096, 0), (8192, 4096)]], 16384)
    arena.ready()
    arena.resize([2048, 8192], [False, True])
    arena.enter(0)
    result, work = torch.empty(512), torch.empty(700)
    arena.leave()
    assert (arena.offset(result.data_ptr()), arena.offset(work.data_ptr())) == (0, 4096)
    assert arena.statistics().misses == 0
    del result, work
    arena.enter(0)
    larger = torch.empty(4000)
    arena.leave()
    assert not arena.contains(larger.data_ptr()) and arena.statistics().misses == 1


@pytest.mark.slow
def test_rungs_are_made_when_they_are_needed_and_share_an_arena_and_a_budget() -> None:
    torch.manual_seed(0)
    model = Decoder()
    eager = copy.deepcopy(model)
    monet.apply(model, budget="80%", dynamic=TEXTS, exact=True, rungs=3, time_limit_s=5, progress=False)
    made = []
    for seed, shape in enumerate([(2, 4), (6, 20), (3, 12), (6, 7), (6, 5), (1, 11), (5, 24)]):
        given = tokens(shape, seed), tokens(shape, seed + 50)
        assert torch.equal(model(*given), eager(*given))
        made.append(len(monet.applied(model).plans))
    assert made == [1, 1, 2, 2, 3, 4, 4]  # up to 24, 12 and 6, and to 12 for one text
    plans = monet.applied(model).plans
    assert [plan.model["dynamic"]["sizes"]["length"][1] for plan in plans] == [24, 12, 6, 12]
    assert len({plan.budget_bytes for plan in plans}) == 1
    assert monet.applied(model).peak_bytes <= plans[0].budget_bytes
    with pytest.raises(ConfigError, match="rungs"):
        monet.apply(Decoder(), budget="80%", dynamic=TEXTS, rungs=0)


@pytest.mark.slow
def test_apply_takes_such_a_plan(tmp_path: Path) -> None:
    model, _, plan = planned("decoder", exact=True)
    plan.save(tmp_path / "plan.json")
    eager = copy.deepcopy(model)
    monet.apply(model, tmp_path / "plan.json", on_mismatch="error")
    for seed, shape in enumerate(SHAPES):
        given = {"tokens": tokens(shape, seed), "labels": tokens(shape, seed + 9)}
        with pytest.raises(PlanMismatch, match="call it as planned"):
            model(**given)
        assert torch.equal(model(*given.values()), eager(*given.values()))


@pytest.mark.slow
def test_gradients_add_up_over_several_shapes() -> None:
    model, _, plan = planned("decoder", exact=True, accumulate=True)
    eager = copy.deepcopy(model)
    module = monet.MonetModule(model, plan)
    for seed, shape in enumerate(SHAPES[:3]):
        given = tokens(shape, seed), tokens(shape, seed + 9)
        module(*given).backward()
        eager(*given).backward()
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-6)  # sums in another order


def test_what_has_plans_of_one_shape_alone_says_so() -> None:
    with pytest.raises(TypeError, match=r"plan_many.*'dynamic'"):
        monet.plan_many(Decoder(), [(tokens((2, 3)), tokens((2, 3)))], "100%", dynamic=TEXTS)
    options: Any = {"budget": "100%", "dynamic": TEXTS}
    compiled = torch.compile(Decoder(), backend="monet", options=options)
    with pytest.raises(Exception, match="'dynamic'"):
        compiled(tokens((2, 3)), tokens((2, 3)))
