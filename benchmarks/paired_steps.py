"""Eager's and a planned step of a configuration in one process: where they alternate, noise meets both."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.utils._pytree as pytree

import monet
from monet.lab.experiments.measured_steps import MeasuredStep
from monet.models.config import Config
from monet.models.model_loading import build_model, precision
from monet.models.sample_inputs import make_inputs
from monet.pipeline.summary import Summary

PAIRS, LEAST_PAIRS, PAIRS_S = 15, 3, 20.0
"""As many pairs of steps as take so many seconds."""
Step = Callable[[Any, int], list[torch.Tensor]]


def steps_of(config: Config, plan: Path, *, beside_eager: bool) -> tuple[Step, Any, monet.MonetModule]:
    """A step as a function of a module and a seed, which returns the gradients; eager's module (None where it is not
    asked for), and the planned one."""
    model = build_model(config)
    model.train()
    eager = copy.deepcopy(model) if beside_eager else None
    planned = monet.MonetModule(model, monet.Plan.load(plan))

    def step(module: Any, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        args, kwargs = make_inputs(config, seed)
        module.zero_grad(set_to_none=True)
        with precision(config):
            results = pytree.tree_leaves(module(*args, **kwargs))
        outputs = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        return [p.grad for p in module.parameters() if p.grad is not None]

    return step, eager, planned


def predicted_by_measured(summary: Summary, measured: MeasuredStep) -> dict[str, float]:
    """Seconds of a plan's step."""
    predicted_s, measured_s = summary.objective_s, float(measured.values["step_s"] or 0)
    return {"predicted_s": predicted_s, "measured_s": measured_s, "ratio": predicted_s / measured_s}


def paired_ratio(config: Config, plan: Path) -> dict[str, float]:
    """The median of the planned step's seconds by eager's, after a pair that is not timed, and how many there were."""
    step, eager, planned = steps_of(config, plan, beside_eager=True)

    def taken_s(module: Any, seed: int) -> float:
        began = time.perf_counter()
        step(module, seed)
        return time.perf_counter() - began

    taken_s(eager, 0), taken_s(planned, 0)
    pairs: list[tuple[float, float]] = []
    while len(pairs) < LEAST_PAIRS or (len(pairs) < PAIRS and sum(map(sum, pairs)) < PAIRS_S):
        pairs.append((taken_s(eager, len(pairs)), taken_s(planned, len(pairs))))
    return {"ratio": median(ours / its for its, ours in pairs), "pairs": len(pairs)}
