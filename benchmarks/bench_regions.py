"""Each group of fused operators: what it takes as aten's calls in turn, as one kernel, and which the program chose.

python benchmarks/bench_regions.py [--model llama] [--share 60]

Of the networks of ``networks.py``, planned once without a limit and once under a share of eager's peak. A group is the
regions of one pass with the same calls, or the operators of one kind that are offered a kernel of their own.
``implementations``: milliseconds of all of a group's runs, and bytes that one of them asks for at most; ``chosen``: how
many runs each got. Without a limit the fastest is chosen, but for what keeps less for the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import getitem
from typing import Any

import click
import record
import torch
from networks import MODELS, build, inputs_of

from monet.base.graph import Operator
from monet.errors import InfeasibleBudget
from monet.ops.fusion.fused import Fused
from monet.ops.fusion.loss_head import Head, Scaled
from monet.ops.fusion.offers import is_compiled
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering
from monet.pipeline.lowering import Lowered
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare
from monet.planner.search import Solving


def _group(op: Operator) -> str:
    """Its calls, in order."""
    if isinstance(op.target, Head):
        return "linear · cross entropy"
    targets = [op.target] if not isinstance(op.target, Fused) else [step.target for step in op.target.steps]
    return " · ".join(str(target).split(".")[1] for target in targets if target is not getitem)


def _groups(lowered: Lowered) -> Iterator[tuple[str, Operator, dict[str, Implementation]]]:
    """Pass, operator and its implementations, where one of these is the compiler's."""
    offers = lowered.catalogue
    for name, operators, named in (
        ("forward", offers.graph.forward, offers.forward),
        ("backward", offers.graph.backward, offers.backward),
    ):
        for op in operators:
            found = dict(named.get(op.name, {}))
            if any(map(is_compiled, found.values())) and not isinstance(op.target, Scaled):
                yield name, op, found


def _rows(name: str, share: int, time_limit_s: float) -> dict[str, Any]:
    prepared = prepare(build(name), inputs_of(name), {}, offering=Offering(fused=True))
    lowered = prepared.lowered
    rows: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for of_pass, op, named in _groups(lowered):
        keys[op.name] = key = f"{of_pass}: {_group(op)}"
        row = rows.setdefault(key, {"runs": 0, "implementations": {}, "chosen": {}})
        row["runs"] += 1
        for each, run in named.items():
            measured = lowered.profile.of(run, lowered.catalogue)
            found = row["implementations"].setdefault(each, {"ms": 0.0, "bytes": 0, "compiled": is_compiled(run)})
            found["ms"] += 1e3 * measured.time_s
            found["bytes"] = max(found["bytes"], measured.workspace_bytes() + sum(
                request.bytes for request in measured.requests if request.output is not None))  # fmt: skip
    for label, budget in (("without a limit", "1TB"), (f"{share} %", f"{share}%")):
        try:
            plan = plan_prepared(prepared, budget, Solving(time_limit_s)).plan
        except InfeasibleBudget:
            continue
        chosen: dict[str, Counter[str]] = {key: Counter() for key in rows}
        for step in plan.steps:
            if step.kind in ("forward", "backward") and step.node in keys:
                chosen[keys[step.node]][step.implementation] += 1
        for key, counts in chosen.items():
            rows[key]["chosen"][label] = dict(counts)
    click.echo(f"{name}: eager's operators {1e3 * prepared.eager.objective_s:.0f} ms")
    for key, row in sorted(rows.items(), key=lambda each: -max(i["ms"] for i in each[1]["implementations"].values())):
        times = ", ".join(f"{each} {found['ms']:.1f} ms" for each, found in row["implementations"].items())
        click.echo(f"  {row['runs']:3} × {key[:70]:70} {times}; {row['chosen'].get('without a limit')}")
    return {"eager_ms": 1e3 * prepared.eager.objective_s, "groups": rows}


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these; others are kept.")
@click.option("--share", default=60, show_default=True, help="The second budget, in per cent of eager's peak.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds to plan a budget.")
def main(models: tuple[str, ...], share: int, time_limit: float) -> None:
    torch.set_num_threads(2)
    found: dict[str, Any] = record.known("regions") if models else {}
    for name in models or MODELS:
        found[name] = _rows(name, share, time_limit)
        record.write("regions", found)


if __name__ == "__main__":
    main()
