"""Plans that are made again with the times of their own step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from module_cases import costs_by_bytes
from moved_steps import ROWS

from monet.base.amounts import parse_budget
from monet.errors import SolverError
from monet.executor.codegen import implementation_of
from monet.executor.planned_step import planned_catalogue
from monet.lab.experiments.configured import prepare_config
from monet.lab.experiments.measured_again import planned_again
from monet.lab.experiments.measured_steps import MEASURED_FIELDS, MeasuredCopies, MeasuredStep, _measured, measured_step
from monet.models.config import Config, InputSpec
from monet.ops.measuring.signature import signature
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import silent
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import PlanResult, plan_prepared, plan_smallest
from monet.pipeline.preparation import Prepared, Preparing
from monet.planner.ablation import MONET
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.plans.format import WAIT
from monet.plans.plan import Plan
from monet.plans.verifier import verify
from monet.step.second_memory.bandwidth import Bandwidth
from monet.step.second_memory.offload import Offload, parse_offload

SOLVING = Solving(time_limit_s=5, cores=1)


@pytest.fixture(scope="module", autouse=True)
def not_by_noise() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        yield


@pytest.fixture(scope="module")
def config() -> Config:
    return Config(model="moved_steps:case_model", kwargs={"case": "layers"}, inputs=(InputSpec(shape=(ROWS, 256)),))


@pytest.fixture(scope="module")
def planned(config: Config) -> PlanResult:
    """A little above the smallest budget: it recomputes, and has a choice."""
    prepared = prepare_config(config, Preparing())
    budget = plan_smallest(prepared, solving=SOLVING).plan.peak_bytes * 21 // 20
    return plan_prepared(prepared, budget, SOLVING)


def again(config: Config, planned: PlanResult, seconds: Mapping[str, Sequence[float]]) -> PlanResult:
    budget, measured = parse_budget(planned.plan.budget_bytes), MeasuredStep({}, seconds)
    return planned_again(
        config, planned, measured, budget, SOLVING, Preparing(), Offering(), variant=MONET, meter=silent
    )


def sum_of(seconds: Mapping[str, Sequence[float]]) -> float:
    return sum(taken_s for of in seconds.values() for taken_s in of)


@pytest.mark.slow
def test_the_step_is_measured_as_a_whole_and_in_parts(config: Config, planned: PlanResult, tmp_path: Path) -> None:
    path = tmp_path / "step.plan.json"
    planned.plan.save(path)
    threads = int(planned.plan.environment["threads"])
    found = measured_step(config, path, threads, in_place=True, quiet=True)
    assert found.values.keys() == set(MEASURED_FIELDS)
    assert found.values["allocator_peak_bytes"] == planned.plan.peak_bytes
    assert sum(map(len, found.seconds.values())) == len(planned.plan.steps)
    assert all(taken_s > 0 for of in found.seconds.values() for taken_s in of)
    result = again(config, planned, found.seconds)
    verify(result.plan)
    taken_s = sum_of(found.seconds)
    assert result.summary.objective_s <= taken_s
    assert result.plan.solver["objective_s"] == result.summary.objective_s
    assert result.plan.peak_bytes <= planned.plan.budget_bytes


def test_the_parts_add_up_to_the_step(
    config: Config, planned: PlanResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a clock that goes on by one each time it is looked at, a step takes longer than its operators."""
    path, clock = tmp_path / "step.plan.json", itertools.count()
    planned.plan.save(path)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = _measured(config, path, int(planned.plan.environment["threads"]), in_place=True)
    assert found.values["step_s"] == 1.0
    in_place_s = [taken_s for of in found.seconds.values() for taken_s in of]
    # Once at the beginning of each of the plan's steps, at the end of each pass, and before and after them all.
    assert sum(in_place_s) == pytest.approx(len(planned.plan.steps) + 3) and len(set(in_place_s)) == 1


def alone(config: Config, planned: PlanResult, slow: float) -> dict[str, list[float]]:
    """Seconds of the plan's steps as measured one by one; of what it runs again so many times as long."""
    lowered = prepare_config(config, Preparing()).lowered
    offers = planned_catalogue(lowered.catalogue.graph, planned.plan)
    found: dict[str, list[float]] = {}
    for step in planned.plan.steps:
        if step.place is not None:  # a copy
            continue
        key = signature(implementation_of(step, offers), offers.values)
        seconds = lowered.profile.measurements[key].time_s
        found.setdefault(key, []).append(seconds * (slow if step.kind == "recompute" else 1.0))
    return found


def test_the_program_chooses_by_the_times_of_the_step(config: Config, planned: PlanResult) -> None:
    """What the plan runs again is slow there, so that something else is run again. (How much is gained depends on
    how many of its kernels the first pass runs, too: these have the median of all their runs.)"""
    seconds = alone(config, planned, 1000.0)
    assert any(step.kind == "recompute" for step in planned.plan.steps)
    result = again(config, planned, seconds)
    assert result.plan.steps != planned.plan.steps
    assert result.summary.objective_s < sum(map(sum, seconds.values()))


def test_a_plan_that_is_no_faster_leaves_the_first_with_its_own_times(
    config: Config, planned: PlanResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupted = replace(planned.solution, status="interrupted")
    slower = replace(planned, solution=interrupted, summary=replace(planned.summary, objective_s=1e9))
    monkeypatch.setattr("monet.lab.experiments.measured_again.plan_prepared", lambda *_, **__: slower)
    seconds = alone(config, planned, 2.0)
    result = again(config, planned, seconds)
    taken_s = sum_of(seconds)
    assert result.plan.steps == planned.plan.steps and result.summary.objective_s == taken_s
    assert result.summary.status == "interrupted"  # Ctrl-C in the second search
    assert result.summary.overhead == taken_s / result.summary.baseline_s - 1
    assert result.plan.solver["objective_s"] == taken_s
    assert result.plan.solver["gap"] == result.summary.gap == max(0.0, taken_s - planned.solution.bound_s) / taken_s
    result.plan.save(tmp_path / "again.plan.json")
    assert Plan.load(tmp_path / "again.plan.json") == result.plan


def test_a_search_that_finds_none_leaves_the_first(
    config: Config, planned: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> PlanResult:
        raise SolverError("no plan was found in time")

    monkeypatch.setattr("monet.lab.experiments.measured_again.plan_prepared", none)
    result = again(config, planned, alone(config, planned, 1.0))
    assert result.plan.steps == planned.plan.steps
    assert (result.summary.bound_s, result.summary.gap, result.summary.bound_scope) == (None, None, "none")
    assert result.summary.status == result.plan.solver["status"] == "time_limit"


@pytest.fixture(scope="module")
def moving(config: Config, planned: PlanResult, disk: Path) -> PlanResult:
    """As ``planned``, with a second memory."""
    prepared = offloaded(prepare_config(config, Preparing()), fast(disk))
    return plan_prepared(prepared, planned.plan.budget_bytes, SOLVING, variant=MOVE)


def fast(disk: Path, given: str = ",write=8GB/s,read=8GB/s") -> Offload:
    return parse_offload(f"disk:{disk}{given}")


def test_a_step_with_copies_has_their_rates(
    config: Config, moving: PlanResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, clock = tmp_path / "step.plan.json", itertools.count()
    moving.plan.save(path)
    waits = [step for step in moving.plan.steps if step.kind == WAIT]
    assert waits
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    found = _measured(config, path, int(moving.plan.environment["threads"]), in_place=True)
    assert found.copies.write_rate is not None and found.copies.read_rate is not None
    assert min(found.copies.write_rate, found.copies.read_rate) > 1e6
    # By the clock, once at each of the plan's steps, twice more in each wait, and three times in a whole step.
    assert found.copies.waited_s == 3 * len(waits)
    in_place_s = sum(taken_s for of in found.seconds.values() for taken_s in of)
    assert in_place_s + found.copies.waited_s == pytest.approx(len(moving.plan.steps) + 2 * len(waits) + 3)


@pytest.mark.parametrize(("given", "rates"), [("", (3e9, 2e9)), (",write=1GB/s", (1e9, 2e9))])
def test_a_plan_with_copies_is_made_again_at_their_rates(
    given: str, rates: tuple[float, float], config: Config, moving: PlanResult, disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Those that were given stay."""
    monkeypatch.setattr("monet.pipeline.offloading.bandwidth", lambda *_, **__: Bandwidth(9e9, 9e9, 1e-10, "today"))
    found: list[Prepared] = []

    def plan(prepared: Prepared, *_: object, **__: object) -> PlanResult:
        found.append(prepared)
        return replace(moving, summary=replace(moving.summary, objective_s=1e9))

    monkeypatch.setattr("monet.lab.experiments.measured_again.plan_prepared", plan)
    memory = {**moving.plan.environment["second_memory"], "slowdown_s": 1e-10}
    environment = {**moving.plan.environment, "second_memory": memory}
    first = replace(moving, plan=replace(moving.plan, environment=environment))
    seconds = alone(config, first, 1.0)
    taken_s = sum_of(seconds)
    result = planned_again(
        config, first, MeasuredStep({}, seconds, MeasuredCopies(3e9, 2e9, 0.5)), parse_budget("10GB"), SOLVING,
        Preparing(), Offering(), offload=fast(disk, given), variant=MOVE, meter=silent,
    )  # fmt: skip
    second, copies = found[0].problem.second, result.summary.second_memory
    assert second is not None and copies is not None
    assert (second.write_rate, second.read_rate) == rates and second.slowdown_s == 1e-10
    assert result.summary.objective_s == taken_s + 0.5 and copies.waited_s == 0.5
    assert found[0].environment["second_memory"] == result.plan.environment["second_memory"] | {"measured": "today"}
    assert (copies.write_rate, copies.read_rate) == rates
    # What copies cost the operators beside them is not the operators'.
    copied = copies.written_bytes + copies.read_bytes
    costs = found[0].lowered.profile.measurements
    ran_s = sum(costs[key].time_s * len(of) for key, of in seconds.items())
    assert ran_s == pytest.approx(taken_s - min(1e-10 * copied, taken_s / 2))
