"""A step captured and measured: all that comes before a budget."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from monet.capture import autocast, capture
from monet.capture.input_geometry import describe_inputs
from monet.errors import CaptureError
from monet.graph import Graph
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.profiling import profile
from monet.ops.offers.offering import DENSITY, Offering
from monet.pipeline.current_scales import present_scales
from monet.pipeline.eager_peak import eager_peak_bytes
from monet.pipeline.lowering import Lowered, lower
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.solution import Run, Solution, Stage
from monet.training_step.accumulation import with_accumulation
from monet.training_step.updates import updates_last
from monet.training_step.whole_step import WholeStep


@dataclass(frozen=True)
class Prepared:
    """A captured and measured step, before any budget. ``eager``: how PyTorch itself would run it, counted as a plan
    is; ``eager_peak_bytes``: what it would then hold at most, see ``monet.pipeline.eager_peak``.

    ``model`` and ``environment``: what a plan must be used with.
    """

    lowered: Lowered
    eager: Solution
    eager_peak_bytes: int
    model: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def problem(self) -> Problem:
        return self.lowered.problem


def prepare(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reserve_bytes: int = 0,
    exact: bool = False,
    accumulate: bool = False,
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> Prepared:
    """Capture a training step and measure its operators: all that comes before a budget.

    ``reserve_bytes``: part of any budget that monet must leave to others (optimiser state). ``exact``:
    only implementations that equal eager's bit by bit. ``accumulate``: for gradients that add up over several batches:
    each is added to ``.grad`` as soon as it is made, so that a step holds one set of gradients and not two, whether
    ``.grad`` was there or not; gradient hooks of parameters cannot be called then, and ``torch.autograd.grad`` finds no
    gradients of parameters. ``storage``: compressed storages to offer besides, see
    ``planner.schedules.STORAGE``, and ``density``, the share of non-zero values that ``sparse`` has room for.
    ``cache``: read and write measurements of earlier runs. ``seed`` is recorded.
    """
    captured = capture(model, args, kwargs, gradients_leave=not accumulate)
    if not any(captured.graph.tangents):
        raise CaptureError(
            "nothing to train: no output of the model has a gradient (it is detached, made under torch.no_grad(), or a "
            "choice such as argmax)"
        )
    graph = with_accumulation(captured).captured.graph if accumulate else captured.graph
    offering = Offering(exact, frozenset(storage), density)
    offers = catalogue(graph, offering, scales=present_scales(model, captured))
    lowered = _measured(offers, type(model).__name__, reserve_bytes, cache=cache, progress=progress)
    described = _described(model, lowered, (args, kwargs), exact, seed, storage, density)
    described |= {"accumulate": True} if accumulate else {}
    return Prepared(lowered, *_eager(lowered, graph, reserve_bytes), described, _environment(lowered))


def _eager(lowered: Lowered, graph: Graph, reserve_bytes: int) -> tuple[Solution, int]:
    """How PyTorch itself would run ``graph``, and its peak in bytes."""
    offers, name = replace(lowered.catalogue, graph=graph), lowered.problem.name
    as_eager = lower(offers, lowered.profile, name=name, reserve_bytes=reserve_bytes, eager=True)
    solution = baseline(as_eager.problem)
    return solution, eager_peak_bytes(solution, as_eager)


def prepare_whole(
    step: WholeStep,
    *,
    reserve_bytes: int = 0,
    exact: bool = False,
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> Prepared:
    """Measure a step that has its own loss and updates; see ``prepare``. Eager's is the same with all updates last."""
    graph, name = step.captured.graph, type(step.module.model).__name__
    offering = Offering(exact, frozenset(storage), density)
    offers = catalogue(graph, offering, scales=present_scales(step.module, step.captured))
    lowered = _measured(offers, name, reserve_bytes, cache=cache, progress=progress)
    described = _described(step.module, lowered, (step.args, {}), exact, seed, storage, density)
    eager = _eager(lowered, updates_last(graph), reserve_bytes)
    return Prepared(lowered, *eager, described, _environment(lowered))


def _described(
    module: torch.nn.Module,
    lowered: Lowered,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    exact: bool,
    seed: int,
    storage: Collection[str],
    density: float,
) -> dict[str, Any]:
    """What a plan says of its model."""
    cast = autocast.state(next(iter(lowered.catalogue.graph.values.values())).device.type)
    return {
        "name": lowered.problem.name,
        "fingerprint": lowered.catalogue.graph.fingerprint(),
        "inputs": describe_inputs(*inputs),
        "training": [part.training for part in module.modules()],
        "exact": exact,
        "seed": seed,
        **({"autocast": cast} if cast is not None else {}),
        **({"storage": sorted(storage), "density": density} if storage else {}),
    }


def _measured(offers: Catalogue, name: str, reserve_bytes: int, *, cache: bool, progress: bool) -> Lowered:
    store = ProfileCache() if cache else None
    try:
        with autocast.ignored():  # the graph has its casts in it
            profiled = profile(offers, cache=store, progress=progress)
    finally:
        if store is not None:
            store.close()
    return lower(offers, profiled, name=name, reserve_bytes=reserve_bytes)


def _environment(lowered: Lowered) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "profile": lowered.profile.environment,
        "threads": torch.get_num_threads(),
        "device": str(next(iter(lowered.catalogue.graph.values.values())).device),
    }


def baseline(problem: Problem) -> Solution:
    """Eager's step as the planner sees it: the first implementation of everything, nothing recomputed."""
    found = Solution(
        forward=tuple(Run(op.id, op.implementations[0].name) for op in problem.forward),
        stages=tuple(Stage((), op.id, op.implementations[0].name) for op in problem.backward),
        objective_s=0.0,
        bound_s=0.0,
        bound_scope="none",
        peak_bytes=0,
        status="baseline",
        build_s=0.0,
        solve_s=0.0,
    )
    played = replay(problem, found)
    return Solution(
        found.forward, found.stages, played.objective_s, 0.0, "none", played.peak_bytes, "baseline", 0.0, 0.0
    )
