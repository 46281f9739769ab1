"""A step captured and measured: all that comes before a budget."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from monet.base.graph import Graph
from monet.base.measurement import Measurement
from monet.base.sizes import Ranges, at_largest, graph_at
from monet.capture import Captured, autocast, kept_capture
from monet.capture.captured import device_type
from monet.capture.effects.same_outputs import require_same_outputs
from monet.capture.input_geometry import describe_inputs, describe_nests, described_sizes
from monet.errors import CaptureError, ConfigError
from monet.native import devices, gpu_libraries
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.estimating.profiling import estimated_profile
from monet.ops.estimating.quick import quick_rates
from monet.ops.estimating.rates import Rates
from monet.ops.fusion.compiling import can_compile
from monet.ops.fusion.compiling_ahead import compiler_made_ready
from monet.ops.fusion.offers import is_compiled
from monet.ops.kernels.ahead import build_ahead, wait_for_builds
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.first_touch import first_touch
from monet.ops.measuring.profiling import Profile, implementations, profile, unmeasured
from monet.ops.measuring.signature import environment as environment_of
from monet.ops.offers.offering import Offering
from monet.ops.resizable import resizable
from monet.pipeline.current_scales import present_scales
from monet.pipeline.eager.memory import asked_anew_bytes
from monet.pipeline.eager.peak import eager_step
from monet.pipeline.lowering import Lowered, lower
from monet.planner.baselines.pytorch import keep_all
from monet.planner.layout.heuristics import build_gaps
from monet.planner.problem import Problem
from monet.planner.solution import Solution
from monet.plans.format import FREED, KEPT
from monet.step.islands import island_costs
from monet.step.training_step.accumulation import with_accumulation
from monet.step.training_step.updates import updates_last
from monet.step.training_step.whole_step import WholeStep

if TYPE_CHECKING:
    from monet.capture.islands.island import Island

LOOK_S = 2.0
"""What is measured in less is not looked at before: looking takes one to three seconds itself. With 5 nothing was said
of XLM-RoBERTa for half a minute, and of an LSTM that does not fit for longer than a minute (bench_command.py)."""
RUNS, OPERATOR_S = 3, 0.012
"""How often an operator runs when it is measured, and what it takes besides: a short one runs more often, and has its
memory recorded. Of BERT's operators on two cores."""
Look = Callable[["Prepared", float, int], None]
"""Is given a step by estimated costs, before it is measured, the seconds that this will take, and the operators."""


@dataclass(frozen=True, slots=True)
class Preparing:
    """How a step is prepared: the settings that a person may give, made once where they are given.

    ``reserve_bytes``: part of any budget that monet must leave to others (optimiser state). ``accumulate``: for
    gradients that add up over several batches: each is added to ``.grad`` as soon as it is made, so that a step holds
    one set of gradients and not two, whether ``.grad`` was there or not; gradient hooks of parameters cannot be called
    then, and ``torch.autograd.grad`` finds no gradients of parameters. ``cache``: read and write measurements and
    plans of earlier runs. ``seed`` is recorded in the plan. ``gradients``: what the loop does with them before the next
    forward pass. ``"freed"``, as ``zero_grad()`` does: they have places in the arena, from when they are made to the
    end of the step, so the forward pass can use their memory. ``"kept"``: they are counted throughout. Either way
    nothing is overwritten that somebody holds; it only takes memory beyond the plan's. ``costs``: nothing is run
    to be measured. Rates estimate the costs, and a plan of them cannot be run either; model and inputs may then be
    fake tensors. A profile was measured for the same step in another process, perhaps on another machine.
    ``bucket_bytes``: of the buckets that ``DistributedDataParallel`` copies gradients into, which are there throughout,
    in eager's step as well. Raises ``ConfigError`` for other values.
    """

    reserve_bytes: int = 0
    accumulate: bool = False
    cache: bool = True
    seed: int = 0
    gradients: str = FREED
    costs: Rates | Profile | None = None
    bucket_bytes: int = 0

    def __post_init__(self) -> None:
        if self.gradients not in (FREED, KEPT):
            raise ConfigError(f"gradients must be {FREED!r} or {KEPT!r}, not {self.gradients!r}")
        for name in ("reserve_bytes", "bucket_bytes"):
            count = getattr(self, name)
            if not isinstance(count, int) or count < 0:
                raise ConfigError(f"{name} must be a number of bytes from 0 on, not {count!r}")


@dataclass(frozen=True)
class Prepared:
    """A captured and measured step, before any budget. ``eager``: how PyTorch itself would run it, counted as a plan
    is; ``eager_peak_bytes``: what it would then hold at most, see ``monet.pipeline.eager``; ``eager_memory_s``: seconds
    that it waits for memory which it asks the system for anew, 0 where that is not known.

    ``model`` and ``environment``: what a plan must be used with. ``remembers``: plans of earlier searches are read, and
    found ones are kept.
    """

    lowered: Lowered
    eager: Solution
    eager_peak_bytes: int
    model: Mapping[str, Any]
    environment: Mapping[str, Any]
    remembers: bool = True
    eager_memory_s: float = 0.0

    @property
    def eager_s(self) -> float:
        """Eager's step: its operators, and what it waits for memory."""
        return self.eager.objective_s + self.eager_memory_s

    @property
    def full_bytes(self) -> int:
        """What a budget of 100% is: eager's peak, or what a plan needs to keep everything, if that is more."""
        return max(self.eager_peak_bytes, self.eager.peak_bytes)

    @property
    def problem(self) -> Problem:
        return self.lowered.problem


def prepare(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    preparing: Preparing | None = None,
    offering: Offering | None = None,
    *,
    progress: bool = False,
    ranges: Ranges | None = None,
    look: Look | None = None,
) -> Prepared:
    """Capture a training step of ``model`` and measure, or estimate, its operators.

    ``preparing`` and ``offering``: None is the defaults of ``Preparing`` and ``Offering``. ``progress``: show the
    measuring on stderr. ``ranges``: which sizes vary; ``args`` and ``kwargs`` are of the largest shape then. ``look``:
    called where measuring will take long. The model is not changed: neither its parameters, nor its buffers, nor the
    random state.

    Raises:
        CaptureError: the model cannot be captured as one graph, there is nothing to train, or what is traced returns
            something else than the model.
        ConfigError: an offering that is not known.
        ProfileError: an operator fails when it is measured.
    """
    preparing, offering = preparing or Preparing(), offering or Offering()
    on_cpu = device_type(model, (args, kwargs)) == "cpu"
    if preparing.costs is None and on_cpu:
        build_ahead(build_gaps)
    compiles = offering.fused and on_cpu and can_compile("cpu")
    with compiler_made_ready() if compiles else nullcontext():
        kept = kept_capture(
            model, args, kwargs, gradients_leave=not preparing.accumulate, on_disk=preparing.cache, ranges=ranges
        )
        captured, compare = kept.captured, partial(kept.require_same_outputs, model, args, kwargs, progress=progress)
        if not any(captured.graph.tangents):
            raise CaptureError(
                "nothing to train: no output of the model has a gradient (it is detached, made under torch.no_grad(), "
                "or a choice such as argmax)"
            )
        graph = with_accumulation(captured).captured.graph if preparing.accumulate else captured.graph
        step = _Step(model, model._get_name(), captured, graph, graph, (args, kwargs), compare)
        return _prepared(step, preparing, offering, progress, look)


def prepare_whole(
    whole: WholeStep,
    preparing: Preparing | None = None,
    offering: Offering | None = None,
    *,
    progress: bool = False,
) -> Prepared:
    """Measure a step that has its own loss and updates; see ``prepare``. Eager's is the same with all updates last.

    Raises as ``prepare``.
    """
    compare = partial(require_same_outputs, whole.captured, whole.module, whole.args, {}, progress=progress)
    graph, name = whole.captured.graph, whole.module.model._get_name()
    step = _Step(whole.module, name, whole.captured, graph, updates_last(graph), (whole.args, {}), compare)
    return _prepared(step, preparing or Preparing(), offering or Offering(), progress)


@dataclass(frozen=True)
class _Step:
    """What is measured: ``graph``, which PyTorch itself would run as ``as_eager``. ``compare``: raises where it is not
    the model."""

    module: torch.nn.Module
    name: str
    captured: Captured
    graph: Graph
    as_eager: Graph
    inputs: tuple[Sequence[Any], Mapping[str, Any]]
    compare: Callable[[], Any]


def _look_at(step: _Step, offers: Catalogue, preparing: Preparing, offering: Offering, look: Look) -> None:
    """Give ``look`` the step by estimates where measuring it will take long, and where there are any: kernels that are
    compiled first, islands and GPUs are not estimated."""
    if offering.fused or step.captured.islands or step.graph.device.type != "cpu":
        return
    store = ProfileCache() if preparing.cache else None
    try:
        missing = unmeasured(offers, store)
    finally:
        if store is not None:
            store.close()
    if not missing:
        return
    estimated = estimated_profile(offers, quick_rates())
    seconds = sum(OPERATOR_S + RUNS * estimated.measurements[key].time_s for key in missing)
    if seconds > LOOK_S:
        look(_prepared(step, replace(preparing, costs=estimated, cache=False), offering, False), seconds, len(missing))


def _prepared(
    step: _Step, preparing: Preparing, offering: Offering, progress: bool, look: Look | None = None
) -> Prepared:
    if step.captured.cast_apart and autocast.is_off_inside(step.graph.device.type):
        raise CaptureError(autocast.why_not_inside(step.captured.cast_apart))
    devices.require_plannable(step.graph.device)
    offers = _offers(step, offering)
    if preparing.costs is None:
        if look is not None:
            _look_at(step, offers, preparing, offering, look)
        step.compare()  # runs the model, which can take long
    if step.captured.ranges is not None:
        as_eager = offers.graph if step.as_eager is step.graph else graph_at(step.as_eager, at_largest)
        step = replace(step, graph=offers.graph, as_eager=as_eager)
    islands = step.captured.islands
    costs, eager = _costs(offers, preparing, progress, islands), None
    if offers.graph is not step.graph:  # with regions: eager has none
        eager = catalogue(step.as_eager, replace(offering, fused=False))
        costs = costs.joined(_costs(eager, preparing, progress, islands))
    elif step.as_eager is not step.graph:
        eager = replace(offers, graph=step.as_eager)
    buckets = {"buckets": preparing.bucket_bytes} if preparing.bucket_bytes else {}
    beside = {**buckets, "reserve": preparing.reserve_bytes}
    offering = replace(offering, fused=any(is_compiled(run) for run in implementations(offers)))
    model, environment = _described(step, preparing, offering), _environment(costs, step.captured, preparing)
    touch_s = partial(_touch_s, costs, preparing, step.graph.device)
    made = prepared_step(offers, costs, model, environment, beside=beside, eager=eager, touch_s=touch_s)
    return replace(made, remembers=preparing.cache)


def _touch_s(costs: Profile, preparing: Preparing, device: torch.device) -> float:
    """Seconds a byte of new memory; 0 on a GPU, whose allocator keeps what it has, and for costs from elsewhere."""
    if device.type != "cpu" or costs.environment != environment_of(device):
        return 0.0
    store = ProfileCache() if preparing.cache else None
    try:
        return first_touch(costs.environment, store)
    finally:
        if store is not None:
            store.close()


def _offers(step: _Step, offering: Offering) -> Catalogue:
    """What there is to choose from; where sizes vary, what there is at every shape."""
    scales = present_scales(step.module, step.captured)
    if step.captured.ranges is None:
        return catalogue(step.graph, offering, scales=scales)
    if offering.fused:
        raise ConfigError("fused kernels are made for one shape: leave out fused, or plan each shape")
    return resizable(step.graph, step.captured.ranges, lambda graph: catalogue(graph, offering, scales=scales))


def prepared_step(
    offers: Catalogue,
    costs: Profile,
    model: Mapping[str, Any],
    environment: Mapping[str, Any],
    *,
    beside: Mapping[str, int],
    eager: Catalogue | None = None,
    touch_s: Callable[[], float] = float,
) -> Prepared:
    """A step whose costs are known. ``model`` and ``environment`` as in ``Prepared``; ``beside``: bytes by kind that a
    budget must leave room for, and that no operator asks for (what a GPU's libraries keep and what islands hold is
    added, as the environment has it); ``eager``: of what PyTorch itself would run, None for ``offers``. ``touch_s``:
    gives the seconds for a byte of memory that is asked from the system anew."""
    counted = {"library_bytes": "libraries", "island_bytes": "islands"}
    beside = {**{kind: environment[name] for name, kind in counted.items() if name in environment}, **beside}
    lowered_as = partial(
        lower, name=model["name"], profile=costs, beside=beside, gradients=model.get("gradients", FREED)
    )
    plain = lowered_as(offers if eager is None else eager, eager=True)
    kept = keep_all(plain.problem, sys.maxsize)
    step = eager_step(kept, plain)
    anew_bytes = asked_anew_bytes(step.blocks)
    waits_s = anew_bytes * touch_s() if anew_bytes else 0.0
    return Prepared(lowered_as(offers), kept, step.peak_bytes, model, environment, eager_memory_s=waits_s)


def _costs(offers: Catalogue, preparing: Preparing, progress: bool, islands: Mapping[str, Island]) -> Profile:
    match preparing.costs:
        case None:
            given = island_costs(offers, islands) if islands else {}
            return measured_costs(offers, cache=preparing.cache, progress=progress, given=given)
        case Rates():
            return estimated_profile(offers, preparing.costs)
        case Profile():
            return preparing.costs.restricted(offers)


def measured_costs(
    offers: Catalogue, *, cache: bool, progress: bool, given: Mapping[str, Measurement] | None = None
) -> Profile:
    """What each implementation takes here; ``cache``: read and write measurements of earlier runs; ``given``: as for
    ``profile``. Raises ``ProfileError``."""
    wait_for_builds()
    store = ProfileCache() if cache else None
    try:
        with autocast.ignored():  # the graph has its casts in it
            return profile(offers, cache=store, progress=progress, given=given)
    finally:
        if store is not None:
            store.close()


def _described(step: _Step, preparing: Preparing, offering: Offering) -> dict[str, Any]:
    """What a plan says of its model."""
    cast = autocast.state(step.graph.device.type)
    return {
        "name": step.name,
        "fingerprint": step.graph.fingerprint(),
        "inputs": describe_inputs(*step.inputs),
        **({"nests": nests} if (nests := describe_nests(*step.inputs)) else {}),
        "training": [part.training for part in step.module.modules()],
        "exact": offering.exact,
        "seed": preparing.seed,
        **({"autocast": cast} if cast is not None else {}),
        **({"storage": sorted(offering.storage), "density": offering.density} if offering.storage else {}),
        **({"fused": True} if offering.fused else {}),
        **(
            {}
            if step.captured.ranges is None
            else {"dynamic": described_sizes(step.captured.graph, step.captured.ranges)}
        ),
        **({"accumulate": True} if preparing.accumulate else {}),
        **({"gradients": KEPT} if preparing.gradients == KEPT else {}),
    }


def _environment(costs: Profile, captured: Captured, preparing: Preparing) -> dict[str, Any]:
    graph = captured.graph
    kept = gpu_libraries.kept_bytes(graph.device) if graph.device.type == "cuda" else 0
    if isinstance(preparing.costs, Rates):
        kept = preparing.costs.kept_bytes
    return {
        "torch": torch.__version__,
        "profile": costs.environment,
        "threads": torch.get_num_threads(),
        "device": str(graph.device),
        **({"library_bytes": kept} if kept or graph.device.type == "cuda" else {}),
        **({"island_bytes": captured.island_bytes} if captured.islands else {}),
    }
