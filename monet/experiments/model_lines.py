"""The lines of a configuration's model that the steps of a plan come from."""

from __future__ import annotations

import torch

from monet.configuration.config import Config
from monet.configuration.model_loading import build_model, precision
from monet.executor.module import MonetModule
from monet.plans.plan import Plan


def model_lines(config: Config, plan: Plan) -> tuple[str, ...]:
    """For each step ``File "…", line …, in …``; empty where the trace does not say, and for what the model does not
    have, such as saved intermediates.

    Raises what ``build_model`` raises, and ``PlanMismatch`` where the plan is of another model.
    """
    torch.set_num_threads(int(plan.environment["threads"]))
    model = build_model(config)
    with precision(config):
        graph = MonetModule(model, plan)._step.graph
    lines = {op.name: op.where.strip().removeprefix("at ") for op in (*graph.forward, *graph.backward)}
    return tuple(lines.get(step.node.partition(".")[0], "") for step in plan.steps)
