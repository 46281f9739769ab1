"""Plans along another order than the captured one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import CASES, case_prepared
from slow_cases import slow_but
from torch import nn

import monet
from monet.base.graph import operator_inputs
from monet.errors import InfeasibleBudget, SolverError
from monet.ops.update_order import late_updates
from monet.pipeline import fitting
from monet.pipeline import placement as placement_module
from monet.pipeline.fit import Fit
from monet.pipeline.fitting import fit_budget, orders_of
from monet.pipeline.lowering import Lowered
from monet.pipeline.offloading import offloaded
from monet.pipeline.orders import along, first_orders, in_order, order_of
from monet.pipeline.placement import placement
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Preparing, prepare, prepare_whole
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import unroll
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.layout import Layout, Lifetime
from monet.planner.layout import layout as layout_of
from monet.planner.memory_floor import floor_bytes
from monet.planner.replay import replay
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.planner.solution import Run
from monet.step.second_memory.offload import parse_offload
from monet.step.training_step.whole_step import capture_whole_step


class Branches(nn.Module):
    """Each branch is wide at its beginning and narrow at its end, and all beginnings come first."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(32, 512) for _ in range(count))
        self.narrow = nn.ModuleList(nn.Linear(512, 8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun = [torch.tanh(wide(x)) for wide in self.wide]
        return torch.stack([narrow(torch.sin(h)) for narrow, h in zip(self.narrow, begun, strict=True)]).sum(0)


def branches() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Branches(), torch.randn(256, 32)


def lowered_branches() -> Lowered:
    model, x = branches()
    return prepare(model, (x,), {}).lowered


def is_in_order(lowered: Lowered) -> bool:
    """Whether every value is made before it is read."""
    graph = lowered.catalogue.graph
    made = {source.value for source in graph.sources} | {name for name in graph.tangents if name is not None}
    for op in (*graph.forward, *graph.backward):
        if not made.issuperset(operator_inputs(op)):
            return False
        made |= {name for name in op.outputs if name is not None}
    return True


def test_the_order_of_keeping_everything_leaves_room() -> None:
    lowered = lowered_branches()
    ordered, captured = (order.lowered for order in first_orders(lowered, "monet", 10.0))
    assert captured is lowered and ordered.fixed == lowered.fixed
    assert floor_bytes(ordered.problem) < 0.8 * floor_bytes(lowered.problem)
    before, after = fastest_plan(lowered.problem), fastest_plan(ordered.problem)
    assert before is not None and after is not None
    assert after.objective_s == pytest.approx(before.objective_s) and after.peak_bytes <= before.peak_bytes
    for one, other in ((lowered.problem, ordered.problem), (ordered.problem, lowered.problem)):
        assert {o.id for o in one.forward} == {o.id for o in other.forward}
        assert {o.id for o in one.backward} == {o.id for o in other.backward}
        assert {t.id: t.bytes for t in one.tensors} == {t.id: t.bytes for t in other.tensors}


@pytest.mark.parametrize("case", slow_but(sorted(CASES.keys() - {"transformer"}), sorted(CASES)))
def test_a_plan_along_its_own_order_needs_what_is_counted(case: str) -> None:
    """The same runs at the same time, and no more bytes than along the order in which they were found."""
    lowered = case_prepared(case, exact=False).lowered
    found = plan_smallest(case_prepared(case, exact=False), solving=Solving(time_limit_s=5.0))
    for solution in (found.solution, fastest_plan(lowered.problem)):
        assert solution is not None
        searched = in_order(lowered, order_of(solution.runs))
        placed = placement(solution.runs, searched, solution.peak_bytes, 5.0)
        other = along(lowered, solution.runs, placed.unrolled.steps)
        assert other is not None
        ordered, runs = other
        assert is_in_order(ordered)
        cost = replay(ordered.problem, runs)
        assert cost.objective_s == pytest.approx(solution.objective_s)
        assert cost.peak_bytes <= max(solution.peak_bytes, lowered.problem.fixed_bytes + placed.ordered.peak_bytes)
        assert in_order(ordered, order_of(solution.runs)).problem == searched.problem


@pytest.mark.parametrize("other_is_larger", [True, False])
def test_what_fits_along_the_order_of_the_program_is_laid_out_first(
    other_is_larger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And kept, where the arena of a better order is no smaller."""
    lowered = lowered_branches()
    solution = fastest_plan(lowered.problem)
    assert solution is not None
    counted = unroll(calls(solution.runs, lowered), lowered)
    layouts: list[tuple[float, int]] = []

    def layout(lifetimes: Sequence[Lifetime], **options: Any) -> Layout:
        made = layout_of(lifetimes, **options)
        layouts.append((options["time_limit_s"], made.arena_bytes))
        larger = other_is_larger and len(layouts) > 1
        return replace(made, arena_bytes=layouts[0][1] + 64) if larger else made

    monkeypatch.setattr(placement_module, "layout", layout)
    placed = placement(solution.runs, lowered, solution.peak_bytes, 8.0)
    assert len(layouts) == 2 and layouts[0][0] == pytest.approx(8.0 * placement_module.FIRST_SHARE)
    assert layouts[1][1] < layouts[0][1]
    assert (placed.unrolled.steps == counted.steps) == other_is_larger
    assert placed.layout.arena_bytes == layouts[0 if other_is_larger else 1][1]
    assert placed.ordered.bound_bytes <= placed.ordered.peak_bytes <= placed.layout.arena_bytes
    assert (placed.ordered.method == "captured") == other_is_larger

    layouts.clear()
    load_bytes = (
        lowered.problem.fixed_bytes
        + layout_of([Lifetime(b.id, b.bytes, b.begin, b.end) for b in counted.buffers]).bound_bytes
    )
    placement(solution.runs, lowered, load_bytes - 64, 8.0)
    assert len(layouts) == 1  # no layout of that order fits, and none is looked for


def test_a_view_comes_before_its_first_reader() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Branches(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x).t()
            out: torch.Tensor = torch.tanh(y[:4]).t() @ torch.sin(y[4:])
            return out

    lowered = prepare(Views(), (torch.randn(64, 32),), {}).lowered
    ordered, _ = (order.lowered for order in first_orders(lowered, "monet", 10.0))
    assert is_in_order(ordered) and is_in_order(lowered)
    names = [{op.name for op in each.catalogue.graph.forward} for each in (lowered, ordered)]
    assert names[0] == names[1]


def test_what_overwrites_a_later_readers_input_is_not_offered() -> None:
    """Along the captured order the ReLU is the last reader of its input."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            out: torch.Tensor = self.last(torch.sigmoid(y)) + torch.relu(y)
            return out

    lowered = prepare(Two(), (torch.randn(8, 16),), {}).lowered
    in_place = {o.id for o in lowered.problem.forward if any(q.overwrites for q in o.implementations)}
    assert "relu" in in_place
    fastest = fastest_plan(lowered.problem)
    assert fastest is not None
    captured = order_of(fastest.runs)
    earlier = ("addmm", "relu", *(name for name in captured.forward if name not in ("addmm", "relu")))
    ordered = in_order(lowered, replace(captured, forward=earlier))
    assert is_in_order(ordered) and ordered.problem.backward == lowered.problem.backward
    assert not any(q.overwrites for o in ordered.problem.forward if o.id == "relu" for q in o.implementations)


def test_a_weight_changes_after_the_last_run_that_reads_it() -> None:
    """In an order with the second weight's gradient at the end, for which a plan may run the first layer again."""
    model = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 4))
    x, targets = torch.randn(64, 32), torch.randn(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = capture_whole_step(model, x, targets, loss_fn=nn.functional.mse_loss, optimizer=optimizer)
    lowered = prepare_whole(step).lowered
    fastest = fastest_plan(lowered.problem)
    assert fastest is not None
    captured = order_of(fastest.runs)
    gradient = next(o.name for o in lowered.catalogue.graph.backward if "tanh" in operator_inputs(o) and "mm" in o.name)
    first, second = ("update model.0.bias", "update model.0.weight"), "update model.2.weight"
    naive = (*(name for name in captured.backward if name not in (gradient, second)), gradient, second)
    late = late_updates(lowered.catalogue, naive)
    assert late == (*(name for name in naive if name not in (gradient, *first, second)), gradient, *first, second)
    for backward in (naive, late):
        ordered = in_order(lowered, replace(captured, backward=backward))
        found = fastest_plan(ordered.problem)
        assert found is not None
        again = tuple(Run(name, "aten") for name in ("addmm", "tanh"))
        stages = tuple(replace(s, recompute=again if s.backward == gradient else ()) for s in found.runs.stages)
        schedule = calls(replace(found.runs, stages=stages), ordered)
        assert [call.kind for call in schedule].count("recompute") == 2
        with nullcontext() if backward == late else pytest.raises(SolverError, match="after its update"):
            unroll(schedule, ordered)


@pytest.mark.slow
def test_a_plan_that_the_captured_order_refuses_runs_as_eager_does() -> None:
    model, x = branches()
    prepared = prepare(model, (x,), {})
    budget_bytes = floor_bytes(prepared.problem) - 1  # less than any plan needs along the captured order
    result = plan_prepared(prepared, budget_bytes, Solving(time_limit_s=10.0))
    assert result.plan.peak_bytes <= budget_bytes
    assert result.problem != prepared.problem
    assert replay(result.problem, result.solution.runs).objective_s == result.solution.objective_s
    check_gradients(monet.MonetModule(model, result.plan), branches()[0], torch.randn_like(x))


def check_gradients(planned: monet.MonetModule, eager: nn.Module, x: torch.Tensor) -> None:
    """The plan leaves those that the model, of the same weights, leaves by itself."""
    for module in (planned, eager):
        module(x).square().sum().backward()
    for one, two in zip(planned.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None and torch.equal(one.grad, two.grad)


def test_plans_that_move_are_found_in_other_orders(tmp_path: Path) -> None:
    """Below what any plan needs along the captured order."""
    (model, _), x = branches(), torch.randn(1024, 32)
    offload = parse_offload(f"disk:{tmp_path},write=1GB/s,read=1GB/s")
    prepared = offloaded(prepare(model, (x,), {}), offload)
    budget = int(0.9 * floor_bytes(prepared.problem))
    result = plan_prepared(prepared, budget, Solving(time_limit_s=5.0), variant=MOVE)
    assert result.plan.peak_bytes <= budget and result.solution.runs.moved
    check_gradients(monet.MonetModule(model, result.plan), branches()[0], x)


@pytest.mark.slow
def test_no_order_makes_a_plan_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order's best plan is as slow as the result or slower, at every budget."""
    lowered = lowered_branches()
    fastest = fastest_plan(lowered.problem)
    assert fastest is not None
    for share in (0.95, 0.8, 0.65):
        fit = Fit(lowered, int(share * fastest.peak_bytes), solving=Solving(time_limit_s=10.0), remembers=False)
        found = fit_budget(fit)[0].objective_s
        for order in orders_of(fit):
            with monkeypatch.context() as patch:
                patch.setattr(fitting, "orders_of", lambda _, order=order: [order])
                patch.setattr(fitting, "along", lambda *_: None)
                try:
                    alone = fit_budget(fit)[0].objective_s
                except InfeasibleBudget:
                    continue
            assert found <= alone * (1 + fit.solving.gap)


@pytest.mark.slow
def test_without_a_cache_no_plan_is_read_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "new"))

    def known(*_: object) -> None:
        raise AssertionError("a known plan")

    monkeypatch.setattr("monet.pipeline.fitting.recall", known)
    monkeypatch.setattr("monet.pipeline.fitting.remember", known)
    monkeypatch.setattr("monet.pipeline.planning.remember", known)
    model, x = branches()
    prepared = prepare(model, (x,), {}, Preparing(cache=False))
    plan_prepared(prepared, "90%", Solving(time_limit_s=5.0))
    plan_smallest(prepared, solving=Solving(time_limit_s=5.0))
    with pytest.raises(InfeasibleBudget):
        plan_prepared(prepared, 1, Solving(time_limit_s=5.0))
    assert not (tmp_path / "new").exists()
