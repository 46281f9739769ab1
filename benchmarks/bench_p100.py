"""Published P100 profiles: plans made in a minute beside those that a commercial solver made in a day.

python benchmarks/bench_p100.py [--instances FOLDER] [--prove]

The profiles and the published results (utsaslab/monet-schedules) are not part of this project; where they are
missing, nothing is run. Of the published results, the record holds only the numbers that are compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import highspy
import record
from instances import instances_option

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.program.index import index_of
from monet.planner.program.program import Program
from monet.planner.published.profile import load_published
from monet.planner.replay import replay
from monet.planner.search import Solving, plan_problem
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.proof import bound_full_program
from monet.planner.search.scope import build, needed_besides, scope_of
from monet.planner.search.state import begun_state
from monet.planner.solution import Solution
from monet.planner.solvers.highs import highs_model
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.scaling import scaled

MODELS = ("resnet50", "unet", "vgg16")
GIB = 2**30
SET_ASIDE_S = 3.0
"""Of the wall time in total: reading the profile, the end of a solve that is over its limit, the replay."""
PRESOLVE_S = 120.0
"""A presolve of the full program that takes longer is given up; its sizes are None."""
GAP = 1e-4
THEIRS = ("objective_ms", "bound_ms", "seconds", "columns", "rows", "presolved_columns", "presolved_rows")


@dataclass(slots=True)
class Case:
    """One profile under one budget. ``published``: the row of the published results.

    ``plan`` is None where none was found (``found`` says why); ``found`` is what the record holds of it.
    """

    path: Path
    budget_gib: float
    published: dict[str, Any]
    plan: Solution | None = None
    found: dict[str, Any] = field(default_factory=dict)
    proven: dict[str, Any] | None = None

    @property
    def budget_bytes(self) -> int:
        return int(self.budget_gib * GIB)

    @property
    def ratio(self) -> float | None:
        """Seconds of the plan by seconds of the published one; None where either has none."""
        theirs = self.published["objective_ms"]
        return None if self.plan is None or not theirs else self.plan.objective_s * 1e3 / theirs


def _search(case: Case, time_limit_s: float) -> None:
    """Plans; ``wall`` counts from reading the profile to the end of the replay.

    Raises ``RuntimeError`` where the replayed plan is over its budget, or not what was promised.
    """
    start = time.perf_counter()
    problem = load_published(case.path)
    try:
        plan = plan_problem(problem, case.budget_bytes, Solving(time_limit_s=time_limit_s, gap=GAP))
    except (InfeasibleBudget, SolverError) as error:
        wall_s = time.perf_counter() - start
        case.found = {"error": type(error).__name__, "message": str(error), "seconds": {"wall": wall_s}}
        return
    _check(case, plan)
    wall_s = time.perf_counter() - start
    if plan.status == "interrupted":
        raise KeyboardInterrupt
    case.plan = plan
    case.found = {
        "objective_ms": plan.objective_s * 1e3,
        "bound_ms": plan.bound_s * 1e3,
        "gap": plan.gap,
        "scope": plan.bound_scope,
        "status": plan.status,
        "peak_bytes": plan.peak_bytes,
        "seconds": {"build": plan.build_s, "solve": plan.solve_s, "wall": wall_s},
        "columns": plan.columns,
        "rows": plan.rows,
    }


def _check(case: Case, plan: Solution) -> None:
    """A replay of the plan on the profile read anew: what the table says is what it costs."""
    played = replay(load_published(case.path), plan.runs)
    if not played.peak_bytes <= case.budget_bytes or played.peak_bytes != plan.peak_bytes:
        raise RuntimeError(
            f"{case.path.stem} at {case.budget_gib:g} GiB: {played.peak_bytes} bytes when replayed, promised "
            f"{plan.peak_bytes}, allowed {case.budget_bytes}"
        )
    if abs(played.objective_s - plan.objective_s) > 1e-9 * played.objective_s:
        raise RuntimeError(f"{case.path.stem}: {played.objective_s} s when replayed, promised {plan.objective_s}")


def _prove(case: Case, time_limit_s: float) -> None:
    """A bound on the full program, in a ``time_limit_s`` of its own.

    It holds for every plan: ``gap`` is that of the plan in the table, ``objective_ms`` what the plan got to meanwhile.
    """
    if case.plan is None:
        return
    start = time.perf_counter()
    problem = load_published(case.path)
    best = Incumbent.fastest_within(problem, case.budget_bytes)
    best.offer(case.plan.runs)
    scope = scope_of(index_of(problem), None)
    program = build(problem, case.budget_bytes, scope, needed_besides(problem, best.runs, scope))
    planned = begun_state(best, case.budget_bytes, Solving(time_limit_s, GAP)).search(program)
    bound_s, status = bound_full_program(planned, case.budget_bytes, time_limit_s, first=0.6)
    if status == "interrupted" or best.cost is None:
        raise KeyboardInterrupt
    first_s = case.plan.objective_s
    case.proven = {
        "bound_ms": bound_s * 1e3,
        "scope": "full",
        "gap": max(0.0, (first_s - bound_s) / first_s),
        "objective_ms": best.cost.objective_s * 1e3,
        "seconds": {"wall": time.perf_counter() - start},
    }


def _sizes(path: Path, budget_bytes: int) -> dict[str, dict[str, Any]]:
    """The programs of one model at one budget before and after HiGHS's presolve.

    ``planned`` is the one that is planned by default, without the extra stages that an incumbent may need;
    ``full`` offers everything that the published program does, so it is the one to compare with it.
    """
    problem = load_published(path)
    stages = len(problem.backward)
    sizes = {}
    for name, window in (("planned", None), ("full", stages)):
        start = time.perf_counter()
        program = build(problem, budget_bytes, scope_of(index_of(problem), window), {})
        built_s = time.perf_counter() - start
        sizes[name] = {
            "scope": program.scope,
            "columns": len(program.rows.costs),
            "rows": len(program.rows.lower),
            "build_s": built_s,
            **_presolved(program),
        }
    return sizes


def _presolved(program: Program) -> dict[str, Any]:
    """What HiGHS's presolve leaves, on the scaled model that a solve would pass to it."""
    found: dict[str, Any] = {}

    def presolve(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("time_limit", PRESOLVE_S)
        highs.passModel(highs_model(model))
        start = time.perf_counter()
        highs.presolve()
        elapsed_s = time.perf_counter() - start
        ended = highs.getModelPresolveStatus()
        kinds = highspy.HighsPresolveStatus
        left = highs.getPresolvedLp() if ended in (kinds.kReduced, kinds.kNotReduced) else None
        found.update(
            presolved_columns=None if left is None else left.num_col_,
            presolved_rows=None if left is None else left.num_row_,
            presolve_s=elapsed_s,
        )
        return Answer("time_limit", None, float("inf"), float("-inf"))

    arrays = program.rows.arrays()
    zeros, ones = arrays.cost * 0.0, arrays.cost * 0.0 + 1.0
    scaled(presolve)(Model(arrays, zeros, ones), Limits(0.0, 0.0), None)
    return found


def _line(case: Case) -> str:
    head = f"{case.path.stem:9} {case.budget_gib:5g} GiB "
    if case.plan is None:
        published = "infeasible there, too" if case.published["infeasible"] else "planned there"
        return f"{head} {case.found['error']} after {case.found['seconds']['wall']:.1f} s; {published}"
    ratio = "    -   " if case.ratio is None else f"× {case.ratio:6.4f}"
    theirs = case.published["objective_ms"]
    line = (
        f"{head} {case.plan.objective_s * 1e3:8.2f} ms  theirs {'-' if theirs is None else f'{theirs:.2f}':>8}  {ratio}"
        f"  gap {case.plan.gap:6.2%} ({case.plan.bound_scope})  {case.found['seconds']['wall']:5.1f} s"
        f"  {case.plan.columns:,} × {case.plan.rows:,}"
    )
    return line if case.proven is None else f"{line}  full: gap {case.proven['gap']:.2%}"


def _table(
    cases: Sequence[Case], sizes: dict[str, Any], source: str, time_limit_s: float, search_s: float, complete: bool
) -> dict[str, Any]:
    return {
        "published_source": source,
        "time_limit_s": time_limit_s,
        "search_limit_s": search_s,
        "gap_limit": GAP,
        "complete": complete,
        "programs": sizes,
        "cases": [
            {
                "model": case.path.stem,
                "budget_gib": case.budget_gib,
                "budget_bytes": case.budget_bytes,
                **case.found,
                "published": {key: case.published[key] for key in THEIRS},
                "ratio": case.ratio,
                "full_program": case.proven,
            }
            for case in cases
            if case.found
        ],
    }


@click.command()
@instances_option("p100")
@click.option("--model", type=click.Choice(MODELS), help="Only this one; writes no file.")
@click.option("--budget", type=float, help="Only this budget, in GiB; writes no file.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds a case.")
@click.option("--prove/--no-prove", default=False, help="A second pass that bounds the full program.")
@click.option(
    "--seconds-total/--seconds-search",
    default=True,
    help=f"The time limit is wall time in total, of which {SET_ASIDE_S:g} s are set aside (default), or the search's.",
)
def main(
    instances: Path, model: str | None, budget: float | None, time_limit: float, prove: bool, seconds_total: bool
) -> None:
    folder = instances / "p100"
    if not (folder / "reference.json").is_file():
        click.echo(f"skipped: no published profiles in {folder}; give --instances or set MONET_INSTANCES")
        return
    reference = json.loads((folder / "reference.json").read_text())
    cases = [
        Case(folder / f"{name}.json", row["budget_gib"], row)
        for name in MODELS
        for row in reference["runs"][name]
        if row["variant"] == "all" and model in (None, name) and budget in (None, row["budget_gib"])
    ]
    if not cases:
        raise click.UsageError(f"the published results have no budget of {budget:g} GiB for that")
    only = model is not None or budget is not None
    search_s = time_limit - SET_ASIDE_S if seconds_total else time_limit
    if search_s <= 0:
        raise click.UsageError(f"--time-limit must be more than the {SET_ASIDE_S:g} s that are set aside")
    sizes: dict[str, Any] = {}

    def save(complete: bool) -> None:
        if not only:
            path = record.write("p100", _table(cases, sizes, reference["source"], time_limit, search_s, complete))
            if complete:
                click.echo(f"wrote {path}")

    for case in cases:
        _search(case, search_s)
        click.echo(_line(case))
        save(complete=False)  # an hour's work: what ends it early loses one case
    for case in cases:
        if case.path.stem not in sizes and case.plan is not None:
            sizes[case.path.stem] = _sizes(case.path, case.budget_bytes)
            click.echo(f"{case.path.stem} at {case.budget_gib:g} GiB, programs: {sizes[case.path.stem]}")
            click.echo(f"{case.path.stem}, published: { ({key: case.published[key] for key in THEIRS[3:]}) }")
    if prove:
        for case in cases:
            _prove(case, search_s)
            click.echo(_line(case))
            save(complete=False)
    ratios = [case.ratio for case in cases if case.ratio is not None]
    if ratios:
        click.echo(f"{len(ratios)} compared: objective by theirs from {min(ratios):.4f} to {max(ratios):.4f}")
    save(complete=True)


if __name__ == "__main__":
    main()
