"""Plans the cells of one source, in the process that this is imported by."""

from __future__ import annotations

import hashlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from monet.base.amounts import refusals_in
from monet.errors import InfeasibleBudget, MonetError, SolverError
from monet.lab.experiments.provenance import machine, versions
from monet.lab.sweep.cells import Cell, Outcome, Step
from monet.lab.sweep.gap_trace import GapTrace
from monet.lab.sweep.source import Options, Source
from monet.lab.sweep.units import unit_of
from monet.planner.problem import Problem
from monet.planner.published.profile import load_published
from monet.planner.replay import Replay, replay
from monet.planner.schedules import MOVING, as_planned, plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Solution
from monet.step.second_memory.offload import parse_offload, variant_with

if TYPE_CHECKING:
    from monet.ops.measuring.profiling import Profile
    from monet.pipeline.preparation import Prepared

Costs: TypeAlias = "Problem | Profile"
"""Of a published profile, or of a model that was measured."""


class CellPlanner(Protocol):
    """A prepared step."""

    step: Step

    def solve(self, cell: Cell, plan_path: Path, trace: GapTrace) -> tuple[Solution, Problem, int | None]:
        """The cell's solution, the problem along its order, and its arena's bytes, None where nothing is laid out and
        no plan is saved.

        Raises ``InfeasibleBudget`` or ``SolverError``.
        """

    @property
    def problem(self) -> Problem: ...

    @property
    def costs(self) -> Costs:
        """What another machine needs to plan the same step."""


def open_planner(
    source: Source, options: Options, progress: bool, cores: int | None = None, costs: Costs | None = None
) -> CellPlanner:
    """Prepares ``source``: reads a profile, or captures and measures a model.

    ``progress``: show the measuring on stderr. ``cores``: for the solves, as for ``plan_problem``. ``costs``: of a
    planner of the same source on another machine; nothing is read or measured then. Raises ``MonetError``.
    """
    if source.profile is not None:
        return _ProfilePlanner(costs if isinstance(costs, Problem) else load_published(source.profile), options, cores)
    return _ModelPlanner(source, options, progress, cores, None if isinstance(costs, Problem) else costs)


def plan_cell(planner: CellPlanner, cell: Cell, plan_path: Path) -> Outcome:
    """The outcome of ``cell``; a model's plan is saved at ``plan_path``.

    What goes wrong is an outcome, too: one cell must not end the others.
    """
    made_on = {"cpu": machine()["cpu"], "versions": versions()}
    trace = GapTrace()
    problem = planner.step.problem
    try:
        with refusals_in(unit_of((cell.budget_bytes,)).name):
            solution, ordered, arena_bytes = planner.solve(cell, plan_path, trace)
        if solution.status == "interrupted":
            raise SolverError("the solve was interrupted")
        played = replay(as_planned(ordered, cell.variant), solution.runs)
    except InfeasibleBudget as error:
        return Outcome("infeasible", problem, str(error), error.smallest_bytes, made_on=made_on)
    except MonetError as error:
        return Outcome("error", problem, str(error), made_on=made_on)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"internal error: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        return Outcome("error", problem, message, made_on=made_on)
    outcome = Outcome(
        status=solution.status,
        problem=problem,
        objective_s=solution.objective_s,
        peak_bytes=solution.peak_bytes if arena_bytes is None else planner.problem.fixed_bytes + arena_bytes,
        arena_bytes=arena_bytes,
        build_s=solution.build_s,
        solve_s=solution.solve_s,
        to_gap_s=trace.reached_s(solution),
        memory_bytes=tuple(moment.bytes for moment in played.moments),
        forward_moments=_forward_moments(played),
        made_on=made_on,
    )
    if cell.variant in MOVING and played.traffic is not None:
        outcome = replace(
            outcome,
            moved_bytes=sum(t.bytes for t in planner.problem.tensors if t.id in solution.runs.moved),
            copied_bytes=played.traffic.written_bytes + played.traffic.read_bytes,
            waited_s=played.traffic.waited_s,
            fast_operands=played.traffic.fast_operand_share,
        )
    if solution.bound_scope == "none" or solution.bound_s <= 0:
        return outcome
    return replace(outcome, bound_s=solution.bound_s, gap=solution.gap, bound_scope=solution.bound_scope)


def _forward_moments(played: Replay) -> int:
    return sum(moment.stage is None for moment in played.moments)


def _step(name: str, problem: Problem, eager: Solution, full_bytes: int | None = None) -> Step:
    """``full_bytes``: what a budget of 100% is, where that is not the program's account of eager."""
    played = replay(problem, eager.runs)
    return Step(
        name=name,
        problem=hashlib.sha256(repr(problem).encode()).hexdigest(),
        baseline_s=played.objective_s,
        baseline_peak_bytes=played.peak_bytes if full_bytes is None else full_bytes,
        fixed_bytes=problem.fixed_bytes,
        memory_bytes=tuple(moment.bytes for moment in played.moments),
        forward_moments=_forward_moments(played),
    )


def _solving(options: Options, cores: int | None) -> Solving:
    most = min((count for count in (options.cores, cores) if count is not None), default=None)
    return Solving(options.time_limit_s, options.gap, options.window, options.solver, cores=most)


class _ProfilePlanner:
    """A published profile: costs and sizes without a model, so there is a solution and no plan file."""

    def __init__(self, problem: Problem, options: Options, cores: int | None) -> None:
        self.costs = problem
        self._solving = _solving(options, cores)
        self.step = _step(problem.name, problem, plan_variant("pytorch", problem, sys.maxsize))
        second = None if options.offload is None else parse_offload(options.offload).assumed()
        self._problem = replace(problem, second=second)

    @property
    def problem(self) -> Problem:
        return self._problem

    def solve(self, cell: Cell, plan_path: Path, trace: GapTrace) -> tuple[Solution, Problem, int | None]:
        solution = plan_variant(cell.variant, self._problem, cell.budget_bytes, self._solving, progress=trace)
        return solution, self._problem, None


class _ModelPlanner:
    """A model on this machine, captured and measured once; each cell leaves a plan file."""

    def __init__(
        self, source: Source, options: Options, progress: bool, cores: int | None, costs: Profile | None
    ) -> None:
        import torch

        from monet.lab.experiments.configured import prepare_config
        from monet.ops.offers.offering import Offering
        from monet.pipeline.offloading import offloaded
        from monet.pipeline.preparation import Preparing

        assert source.config is not None
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self._prepared: Prepared = prepare_config(
            source.config,
            Preparing(options.reserve_bytes, costs=costs),
            Offering(options.exact, frozenset(options.storage), options.density, options.fused),
            progress=progress,
        )
        self.costs = self._prepared.lowered.profile
        self._solving = _solving(options, cores)
        self.step = _step(self.problem.name, self.problem, self._prepared.eager, self._prepared.full_bytes)
        self._offload = None if options.offload is None else parse_offload(options.offload)
        self._prepared = offloaded(self._prepared, self._offload)

    @property
    def problem(self) -> Problem:
        return self._prepared.problem

    def solve(self, cell: Cell, plan_path: Path, trace: GapTrace) -> tuple[Solution, Problem, int | None]:
        from monet.pipeline.meter import reporting_to
        from monet.pipeline.planning import plan_prepared

        meter = reporting_to(trace)
        if cell.variant in MOVING:
            variant_with(self._offload, cell.variant)
        result = plan_prepared(self._prepared, cell.budget_bytes, self._solving, variant=cell.variant, meter=meter)
        result.plan.save(plan_path)
        return result.solution, result.problem, result.plan.arena_bytes
