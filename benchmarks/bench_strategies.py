"""What each strategy of the search is worth: the same problems under the same time limit, with one left out at a time.

python benchmarks/bench_strategies.py [--only bert] [--instances FOLDER] [--time-limit 10] [--gap 0.001]

A problem is a network along its best order of keeping everything, with a budget in shares of what the fastest plan
needs there; ``moving`` ones have a second memory, and of ``least`` ones the smallest budget is looked for, with a tenth
more seconds than the fastest plan's. ``policy``: by which a problem is planned. ``second core``: without the worker.
Without ``Relaxation`` there is neither ``Filling`` nor ``BranchAndBound``, which go on from it; without ``Thriftiest``
no ``Descent``.

Budgets are small and the gap is a tenth of the default one, since the relaxation alone ends most searches otherwise: at
1 % all but one of twelve easier cells end with it, in .1 to 4 s.

``p100/`` are published profiles, under 5 and 7 GiB; where they are missing, they are left out. Costs of the others are
estimated; overheads (of ``least``: bytes) are over the fastest plan, gaps to what is proven.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import record
from bench_orders import prepared_network, row_text
from instances import instances_option

from monet.errors import InfeasibleBudget, SolverError
from monet.pipeline.orders import first_orders
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import Problem, SecondMemory
from monet.planner.program.index import index_of
from monet.planner.published.profile import load_published
from monet.planner.search import Solving, plan_problem, policy, smallest_plan
from monet.planner.search.exact import FullProgram
from monet.planner.search.scope import LARGEST_WINDOWED, is_within, scope_of
from monet.planner.search.state import Policy
from monet.planner.solution import Solution

SECOND, SECOND_OF_GPU = SecondMemory(write_rate=1e9, read_rate=1e9), SecondMemory(write_rate=12e9, read_rate=12e9)
PUBLISHED = "p100/"


@dataclass(frozen=True)
class Kind:
    """``policies``: the names in ``policy.py`` of those that may apply, whose strategies are left out in turn."""

    name: str
    policies: tuple[str, ...]
    cells: dict[str, tuple[float, ...]]


KINDS = (
    Kind(
        "alone",
        ("WINDOWED", "DEEP"),
        {
            "bert": (0.45, 0.4), "convnext_tiny": (0.6, 0.45), "gpt2": (0.4,),
            "resnet50": (0.75, 0.68), "efficientnet_b0": (0.4,), "shufflenet_v2_x1_0": (0.5,), "googlenet": (0.52,),
            "mobilenet_v2": (0.5,), "t5": (0.4,), "densenet121": (0.45,), "bert-48": (0.35,), "efficientnet_b7": (0.4,),
            "p100/resnet50": (0.34, 0.477), "p100/unet": (0.339,),
        },
    ),
    Kind("moving", ("MOVING",), {"resnet50": (0.7,), "bert": (0.4,), "mobilenet_v2": (0.5,), "p100/resnet50": (0.34,)}),
    Kind(
        "least",
        ("SMALLEST",),
        {
            "efficientnet_b0": (1.1,), "bert": (1.1,), "googlenet": (1.1,), "p100/resnet50": (1.1,),
            "p100/unet": (1.1,),
        },
    ),
)  # fmt: skip


def _policies(kind: Kind, problem: Problem) -> tuple[str, ...]:
    """Those of the kind that this problem is planned by."""
    if len(kind.policies) == 1:
        return kind.policies
    index = index_of(problem)
    return kind.policies[:1] if is_within(index, scope_of(index, None), LARGEST_WINDOWED) else kind.policies[1:]


@contextmanager
def _without(names: tuple[str, ...], left_out: str) -> Iterator[None]:
    """Each of the policies without the strategy of that name."""
    with ExitStack() as patches:
        for name in names:
            whole: Policy = getattr(policy, name)
            shorter = tuple(strategy for strategy in whole if type(strategy).__name__ != left_out)
            patches.enter_context(patch.object(policy, name, shorter))
        yield


def _strategies(names: tuple[str, ...]) -> list[str]:
    """But for the one that runs where a proof was asked for."""
    strategies = (strategy for name in names for strategy in getattr(policy, name))
    found = (type(strategy).__name__ for strategy in strategies if not isinstance(strategy, FullProgram))
    return list(dict.fromkeys(found))


def _problem(name: str, kind: Kind, instances: Path) -> Problem | None:
    if name.startswith(PUBLISHED):
        path = instances / f"{name}.json"
        if not path.is_file():
            click.echo(f"left out: no {path}; give --instances or set MONET_INSTANCES")
            return None
        problem, second = load_published(path), SECOND_OF_GPU
    else:
        lowered = prepared_network(name).lowered
        problem = restrict(first_orders(lowered, MONET, 10.0)[0].lowered.problem, MONET)
        second = SECOND
    return replace(problem, second=second) if kind.name == "moving" else problem


def _solved(problem: Problem, kind: Kind, fastest: Solution, share: float, solving: Solving) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        if kind.name == "least":
            least = smallest_plan(problem, share * fastest.objective_s, solving)
            value, gap, status = least.solution.peak_bytes / fastest.peak_bytes, least.gap, least.solution.status
        else:
            found = plan_problem(problem, int(share * fastest.peak_bytes), solving)
            value, gap, status = found.objective_s / fastest.objective_s - 1, found.gap, found.status
    except (InfeasibleBudget, SolverError):
        return {"refused": True, "wall_s": time.perf_counter() - begun}
    return {"value": value, "gap": gap, "status": status, "wall_s": time.perf_counter() - begun}


@click.command()
@click.option("--only", "only", multiple=True, help="Only these networks or kinds; of the record these rows are anew.")
@instances_option("p100")
@click.option("--time-limit", default=10.0, show_default=True, help="Seconds of each search.")
@click.option("--gap", default=0.001, show_default=True, help="Within which a search ends.")
def main(only: tuple[str, ...], instances: Path, time_limit: float, gap: float) -> None:
    known = record.RESULTS / "strategies.json"
    results: dict[str, Any] = json.loads(known.read_text())["result"]["cells"] if only else {}
    for kind in KINDS:
        for name, shares in kind.cells.items():
            if only and name not in only and kind.name not in only:
                continue
            problem = _problem(name, kind, instances)
            if problem is None:
                continue
            fastest = fastest_plan(problem)
            assert fastest is not None
            policies = _policies(kind, problem)
            for share in shares:
                solving = Solving(time_limit_s=time_limit, gap=gap)
                row = {"all": _solved(problem, kind, fastest, share, solving)}
                row["second core"] = _solved(problem, kind, fastest, share, replace(solving, cores=1))
                for left_out in _strategies(policies):
                    with _without(policies, left_out):
                        row[left_out] = _solved(problem, kind, fastest, share, solving)
                results[f"{kind.name} {name} {share:g}"] = {"policy": policies[0], "commit": record.COMMIT, **row}
                click.echo(f"{policies[0]} {name} {share:g}: {row_text(row, 'value')}")
    click.echo(f"wrote {record.write('strategies', {'time_limit_s': time_limit, 'cells': results})}")


if __name__ == "__main__":
    main()
