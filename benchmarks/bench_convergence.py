"""Training to the end, eager and planned: a small ResNet with momentum and a small GPT with dropout and AdamW.

python benchmarks/bench_convergence.py [--steps 300] [--seeds 5]

For each seed (of weights, data and dropout) the same steps are made by eager PyTorch, by a plan for about the smallest
budget, and by eager once more from weights that are off by one rounding each (times 1 ± 2^-24). With the first seed
also by plans with ``exact=True``, as a module in a loop and as ``monet.optimize``.

- exact: every loss and every final weight is bitwise eager's.
- not exact: let f be the mean loss of the last tenth of the steps. The same statistically: for no seed does planned f
  differ from eager's by more than eager's own f differ over the seeds (largest less smallest), and the root mean square
  of these differences over the seeds is at most 3 times that of the copies that are off by a rounding. With 5 seeds and
  equal variances, a ratio of variances above 3² has a probability of 0.015 (F distribution, 5 and 5 degrees).

One thread; losses are means over ten steps in the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import record
import torch
from torch import Tensor, nn

import monet
from monet.errors import InfeasibleBudget
from monet.executor.codegen import implementation_of
from monet.models.data import pictures, texts
from monet.models.examples import tiny_gpt, tiny_resnet
from monet.ops.catalogue import catalogue
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.search import Solving

MOST_ROUNDINGS = 3.0
POINT = 10  # steps that one point of a recorded curve is the mean of


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.make()


CASES = {
    "tiny ResNet, SGD with momentum": Case(
        lambda: tiny_resnet(width=8),
        lambda seed: pictures(seed, 16, noise=4.0),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=1e-4),
    ),
    "tiny GPT, AdamW": Case(tiny_gpt, lambda seed: texts(seed, 8), lambda p: torch.optim.AdamW(p, 3e-3)),
}


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def train(case: Case, module: nn.Module, seed: int, steps: int) -> list[float]:
    """Losses of all steps; dropout begins from the seed."""
    optimizer = case.optimizer(module.parameters())
    losses = []
    torch.manual_seed(seed)
    for step in range(steps):
        inputs, targets = case.batch(10_000 * seed + step)
        optimizer.zero_grad()
        loss = loss_of(module(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_whole(case: Case, trainer: monet.Trainer, seed: int, steps: int) -> list[float]:
    torch.manual_seed(seed)
    return [trainer(*case.batch(10_000 * seed + step))[0].item() for step in range(steps)]


def off_by_a_rounding(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p * (torch.rand(p.shape, generator=generator) - 0.5).sign() * 2.0**-24)
    return model


def tight(plan: Callable[[int], Any]) -> Any:
    """What ``plan`` makes for 2 % more than the least budget that an error names."""
    budget = 1
    for _ in range(5):
        try:
            return plan(budget)
        except InfeasibleBudget as error:
            assert error.smallest_bytes is not None
            budget = error.smallest_bytes * 102 // 100
    raise SystemExit("budgets that errors name do not suffice")


def tight_plan(prepared: Prepared, time_limit_s: float = 20.0) -> monet.Plan:
    return tight(lambda budget: plan_prepared(prepared, budget, Solving(time_limit_s=time_limit_s)).plan)  # type: ignore[no-any-return]


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def exact_rows(
    case: Case, eager: nn.Module, losses: Sequence[float], steps: int, time_limit_s: float = 20.0
) -> list[dict[str, Any]]:
    """The first seed by exact plans: steps whose loss is not bitwise eager's, and whether the last weights are."""
    inputs, targets = case.batch(0)
    model = case.model(0)
    plan = tight_plan(prepare(model, (inputs,), {}, offering=Offering(exact=True)), time_limit_s)
    module = train(case, monet.MonetModule(model, plan), 0, steps)
    whole = case.model(0)
    trainer = tight(
        lambda budget: monet.optimize(
            whole, inputs, targets, loss_fn=loss_of, optimizer=case.optimizer(whole.parameters()), budget=budget,
            exact=True, time_limit_s=time_limit_s,
        )
    )  # fmt: skip
    found = train_whole(case, trainer, 0, steps)
    return [
        {
            "of": name,
            **_memory(used),
            "steps_with_another_loss": sum(a != b for a, b in zip(curve, losses, strict=True)),
            "weights_equal": same_weights(trained, eager),
        }
        for name, used, curve, trained in (
            ("module", plan, module, model),
            ("optimize", trainer.plan, found, whole),
        )
    ]


def _memory(plan: monet.Plan) -> dict[str, Any]:
    return {
        "peak_bytes": plan.peak_bytes,
        "eager_peak_bytes": plan.solver["baseline_peak_bytes"],
        "recomputed": sum(step.kind == "recompute" for step in plan.steps),
    }


def run(name: str, case: Case, steps: int, seeds: int) -> tuple[dict[str, Any], dict[str, list[list[float]]]]:
    """The record of a case, and its curves."""
    prepared = prepare(case.model(0), (case.batch(0)[0],), {})
    plan = tight_plan(prepared)
    inexact = sum(not implementation_of(step, catalogue(prepared.lowered.catalogue.graph)).exact for step in plan.steps)
    curves: dict[str, list[list[float]]] = {"eager": [], "planned": [], "eager, off by a rounding": []}
    exact: list[dict[str, Any]] = []
    for seed in range(seeds):
        eager = case.model(seed)
        curves["eager"].append(train(case, eager, seed, steps))
        curves["planned"].append(train(case, monet.MonetModule(case.model(seed), plan), seed, steps))
        curves["eager, off by a rounding"].append(train(case, off_by_a_rounding(case.model(seed)), seed, steps))
        if seed == 0:
            exact = exact_rows(case, eager, curves["eager"][0], steps)
        click.echo(f"{name}, seed {seed}: " + ", ".join(f"{k} {final(v[-1]):.6f}" for k, v in curves.items()), err=True)
    return {
        "case": name, "steps": steps, "seeds": seeds, **_memory(plan), "inexact_steps": inexact,
        "exact": exact, **compare(curves),
        "curves": {k: [_points(curve) for curve in v] for k, v in curves.items()},
    }, curves  # fmt: skip


def final(curve: Sequence[float]) -> float:
    last = max(1, len(curve) // 10)
    return sum(curve[-last:]) / last


def _points(curve: Sequence[float]) -> list[float]:
    return [round(sum(curve[i : i + POINT]) / len(curve[i : i + POINT]), 6) for i in range(0, len(curve), POINT)]


def compare(curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    """The test that the module's text describes."""
    eager, planned, rounded = ([final(curve) for curve in group] for group in curves.values())
    differences = [a - b for a, b in zip(planned, eager, strict=True)]
    roundings = [a - b for a, b in zip(rounded, eager, strict=True)]
    spread = max(eager) - min(eager)
    size, reference = (math.sqrt(sum(d * d for d in found) / len(found)) for found in (differences, roundings))
    return {
        "final_eager": eager,
        "final_planned_less_eager": differences,
        "final_rounding_less_eager": roundings,
        "eager_spread": spread,
        "root_mean_square": {"planned": size, "rounding": reference},
        "statistically_the_same": max(map(abs, differences)) <= spread and size <= MOST_ROUNDINGS * reference,
    }


def picture(curves: dict[str, dict[str, list[list[float]]]], path: Any) -> None:
    """One panel a case: eager as a broad line, planned as a thin one on it, every seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5.2 * len(curves), 3.8), squeeze=False)
    for axis, (name, groups) in zip(axes[0], curves.items(), strict=True):
        for i, (eager, planned) in enumerate(zip(groups["eager"], groups["planned"], strict=True)):
            steps = range(POINT, len(eager) + POINT, POINT)
            said = {"label": "eager"} if i == 0 else {}
            axis.plot(steps, _points(eager), color="#9db8d9", linewidth=4.0, solid_capstyle="round", **said)
            said = {"label": "planned, about the smallest budget"} if i == 0 else {}
            axis.plot(steps, _points(planned), color="#0b0c0d", linewidth=0.9, **said)
        axis.set_title(f"{name}, {len(groups['eager'])} seeds")
        axis.set_xlabel("step")
        axis.set_ylabel("loss (mean of ten steps)")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


@click.command()
@click.option("--steps", default=300, show_default=True)
@click.option("--seeds", default=5, show_default=True)
@click.option("--dry", is_flag=True, help="Write no files.")
def main(steps: int, seeds: int, dry: bool) -> None:
    torch.set_num_threads(1)
    rows, curves = [], {}
    for name, case in CASES.items():
        row, curves[name] = run(name, case, steps, seeds)
        rows.append(row)
        shown = {k: v for k, v in row.items() if k != "curves"}
        click.echo("\n".join(f"{k}: {v}" for k, v in shown.items()) + "\n")
    if not dry:
        path = record.write("convergence", rows)
        picture(curves, path.with_suffix(".png"))
        click.echo(f"wrote {path} and {path.with_suffix('.png')}")


if __name__ == "__main__":
    main()
