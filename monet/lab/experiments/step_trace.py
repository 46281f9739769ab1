"""Every step of a plan, as predicted from measurements one by one and as it runs in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.utils._pytree as pytree
from tqdm import tqdm

from monet.base.graph import Graph
from monet.executor.codegen import implementation_of
from monet.executor.module import MonetModule
from monet.executor.planned_step import planned_catalogue
from monet.executor.step_times import StepTimes
from monet.lab.experiments.copy_times import seconds_with_copies
from monet.models.config import Config
from monet.models.model_loading import build_model, precision
from monet.models.sample_inputs import make_inputs
from monet.native import devices
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.signature import between_bytes, kept_under, signature
from monet.plans.plan import Plan

WARM_UP_STEPS = 2
"""Not timed: first uses build kernels and make the arena resident."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """``predicted_s``: the implementation measured alone, and what it loses beside copies; of a wait, what is left of
    its copy. ``measured_s``: the median of its runs in the plan. ``where``: the line of the model it comes from."""

    step: int
    kind: str
    node: str
    implementation: str
    family: str
    predicted_s: float
    measured_s: float
    where: str

    @property
    def excess_s(self) -> float:
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True)
class StepTrace:
    """``whole_s``: median seconds of forward and backward, as the loop sees them: what is beyond the sum of the steps
    is Python's and autograd's. ``predicted_s``: of the plan. ``runs``: how many steps were timed."""

    steps: tuple[TracedStep, ...]
    predicted_s: float
    whole_s: float
    runs: int

    @property
    def measured_s(self) -> float:
        """Of all steps."""
        return sum(step.measured_s for step in self.steps)


def trace_config(config: Config, plan: Plan, *, runs: int, progress: bool) -> StepTrace:
    """``runs`` steps of the configuration's model by the plan, on inputs of the configuration's seeds.

    Raises what ``build_model`` and ``MonetModule`` raise, ``PlanMismatch`` where the plan is of another model.
    """
    torch.set_num_threads(int(plan.environment["threads"]))
    model = build_model(config)
    module = MonetModule(model, plan)
    seconds: dict[int, list[float]] = {}
    whole: list[float] = []
    with precision(config), tqdm(total=WARM_UP_STEPS + runs, desc="running steps", disable=not progress) as bar:
        for run in range(WARM_UP_STEPS + runs):
            with StepTimes(module._step.runner) as times:
                took_s = _step(config, model, module, config.seed + run)
            bar.update()
            if run < WARM_UP_STEPS:
                continue
            whole.append(took_s)
            for step, taken_s in times.steps():
                seconds.setdefault(step, []).append(taken_s)
    predicted = seconds_with_copies(plan, _predicted(plan, planned_catalogue(module._step.graph, plan)))
    where = _described(module._step.graph)
    steps = []
    for number, of in enumerate(plan.steps):
        family, line = where(of.node) if of.place is None else ("copy", "")
        in_place_s = median(seconds[number])
        named = of.kind, of.node, of.implementation, family
        steps.append(TracedStep(number, *named, predicted[number], in_place_s, line))
    return StepTrace(tuple(steps), float(plan.solver["objective_s"]), median(whole), runs)


def _step(config: Config, model: torch.nn.Module, module: torch.nn.Module, seed: int) -> float:
    """Seconds of forward and backward, with ones as the gradient of every output."""
    args, kwargs = make_inputs(config, seed)
    if not config.accumulate:
        model.zero_grad(set_to_none=True)
    device = torch.device(config.device)
    devices.synchronize(device)
    begun = time.perf_counter()
    result = module(*args, **kwargs)
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    del result
    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    devices.synchronize(device)
    return time.perf_counter() - begun


def _predicted(plan: Plan, catalogue: Catalogue) -> list[float]:
    """Seconds of each step's implementation alone: as the planner has measured it, or measured now."""
    bench, store = Bench(between_bytes(catalogue.graph), catalogue.graph.device), ProfileCache()
    kept_at = kept_under(catalogue.graph)
    known: dict[str, float] = {}
    found = []
    try:
        for step in plan.steps:
            if step.place is not None:  # a copy
                found.append(0.0)
                continue
            implementation = implementation_of(step, catalogue)
            key = signature(implementation, catalogue.values)
            if key not in known:
                kept = store.get(f"{kept_at}|{key}") or store.get(f"{kept_at}|{key}", busy=True)
                known[key] = (kept or bench.measure(implementation, catalogue.values)).time_s
            found.append(known[key])
    finally:
        store.close()
    return found


def _described(graph: Graph) -> Callable[[str], tuple[str, str]]:
    """By node: the family of its operator, and the line of the model it comes from."""
    operators = {op.name: op for op in (*graph.forward, *graph.backward)}

    def described(node: str) -> tuple[str, str]:
        op = operators.get(node)
        return ("saved intermediate", "") if op is None else (op.signature.split(".")[1], op.where)

    return described


def by(steps: tuple[TracedStep, ...], key: Callable[[TracedStep], str]) -> Mapping[str, tuple[int, float, float]]:
    """Group → number of steps, predicted and measured seconds; what differs most comes first."""
    groups: dict[str, tuple[int, float, float]] = {}
    for step in steps:
        count, predicted_s, measured_s = groups.get(key(step), (0, 0.0, 0.0))
        groups[key(step)] = count + 1, predicted_s + step.predicted_s, measured_s + step.measured_s
    return dict(sorted(groups.items(), key=lambda item: -abs(item[1][2] - item[1][1])))
