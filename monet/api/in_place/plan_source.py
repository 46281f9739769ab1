"""Where the plan of a training call comes from: a captured step, planned anew or found on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.api.in_place import kept_plans
from monet.api.in_place.call_geometry import InputGeometry
from monet.base.amounts import ByteBudget, ByteCount, PeakShare, parse_budget
from monet.base.sizes import Dimension, Ranges
from monet.capture import Captured, autocast, capture_once
from monet.capture.captured import device_type
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.input_geometry import describe_inputs, described_ranges
from monet.capture.plain_tensors import PLAIN, is_plain
from monet.capture.varying_inputs import given_axes, largest, ranges_of
from monet.errors import CaptureError, ConfigError, ExecutionError
from monet.executor import parallel
from monet.executor.module import MonetModule
from monet.ops.measuring.signature import environment
from monet.plans.format import FREED
from monet.plans.plan import Plan

MakePlan = Callable[..., Plan]
"""``monet.plan``."""


@dataclass(frozen=True, slots=True)
class Rung:
    """What a plan for many shapes is for, of all that was asked for. ``fixed``: dimensions that it has one size of.
    ``cap``: the largest size of the longest dimension; 0 for what was asked for."""

    fixed: frozenset[str] = frozenset()
    cap: int = 0

    def of(self, asked: Ranges) -> Ranges | None:
        """The ranges of such a plan; None where nothing varies."""
        ranges = asked.without(self.fixed)
        return ranges if ranges is None or not self.cap else ranges.capped(_longest(ranges).name, self.cap)


def _longest(ranges: Ranges) -> Dimension:
    return max(ranges.dimensions, key=lambda dimension: dimension.most)


@dataclass(frozen=True, slots=True)
class Planned:
    """A module that runs a plan for one geometry of calls. ``recalled``: its plan is from disk and has
    not run yet: weights may have changed so that it must not be used, see ``monet.executor.runner``."""

    module: MonetModule
    recalled: bool = False

    @property
    def ranges(self) -> Ranges | None:
        """For which shapes the plan holds; None for one shape."""
        return self.module._captured.ranges


class PlanSource:
    """Plans for one ``budget`` with one set of options of ``monet.plan``. Raises ``ConfigError`` for what is no
    budget."""

    def __init__(self, make_plan: MakePlan, budget: str | int, options: Mapping[str, Any], rungs: int = 1) -> None:
        """``rungs``: plans for rising sizes of the longest dimension that varies, each for twice those of the one
        before."""
        self._make_plan = make_plan
        self.budget = parse_budget(budget)
        self._asked: dict[str, ByteBudget] = {}  # by step: the budget that its plan was first asked for with
        self._options = dict(options)
        self._dynamic = options.get("dynamic")
        self._rungs = rungs
        self._of_calls: dict[pytree.TreeSpec, Ranges] = {}  # by the structure of a call
        self._on_disk = bool(options.get("cache", True))

    def planned(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        guard: ModelGuard,
        *,
        anew: bool = False,
        share_bytes: int | None = None,
        rung: Rung | None = None,
        most_fixed: int = 0,
    ) -> Planned:
        """``model``, which is as ``guard`` knows it, with a plan for such a call. ``anew``: not one from disk.
        ``rung``: the plan is for these shapes of the range that was asked for, with what is fixed as in the call; None:
        for this call alone. ``most_fixed``: bytes that a plan over the same arena holds beside it. ``share_bytes``:
        what a budget that is a share of eager's peak has come to for an earlier plan, and comes to for this one.

        Inside of ``DistributedDataParallel`` its buckets are counted. Raises as ``monet.plan``, ``CaptureError`` for
        parameters that are spread over processes, ``ExecutionError`` for gradients that it could not reduce, and
        ``KeyboardInterrupt`` where planning is interrupted: nothing is trained by a plan that nobody asked for.
        """
        _require_made(model)
        options = {**self._options, **_counted_beside(model, self._options)}
        captured, (args, kwargs) = self._captured(model, args, kwargs, rung)
        options["dynamic"] = None if captured.ranges is None else given_axes(model, args, kwargs, captured.ranges)
        budget = self.budget
        if isinstance(budget, PeakShare) and share_bytes is not None:
            budget = ByteCount(share_bytes)
        step = self._key(model, captured, args, kwargs, options)
        # A first plan that is made anew is kept in the place of the one from disk, which the next start looks for.
        key = kept_plans.key_of(step, self._asked.setdefault(step, budget))
        plan = kept_plans.recall(key) if self._on_disk and not anew else None
        if plan is not None:
            return Planned(MonetModule(model, plan, captured, guard), recalled=True)
        options = {"progress": True, **options}
        plan = self._make_plan(model, args, kwargs, budget=budget, **options)
        spared = most_fixed - plan.fixed_bytes
        if spared > 0 and most_fixed + plan.arena_bytes > plan.budget_bytes:
            # It holds less beside the arena than another plan, and must not make that larger than the other leaves it.
            plan = self._make_plan(model, args, kwargs, budget=ByteCount(plan.budget_bytes - spared), **options)
        if plan.solver["status"] == "interrupted":
            raise KeyboardInterrupt
        if self._on_disk:
            kept_plans.keep(key, plan)
        return Planned(MonetModule(model, plan, captured, guard))

    def adopted(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], plan: Plan, guard: ModelGuard
    ) -> Planned:
        """``model`` with the plan that another process has made for such a call. Raises ``PlanMismatch`` where it was
        for another model or machine, and ``CaptureError``."""
        _require_made(model)
        return Planned(MonetModule(model, plan, self._captured(model, args, kwargs)[0], guard))

    def _captured(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rung: Rung | None = None
    ) -> tuple[Captured, tuple[tuple[Any, ...], dict[str, Any]]]:
        """The step of such a call, and its inputs without the graphs that they come from."""
        args, kwargs = pytree.tree_map(_detached, (args, kwargs))
        leave = not self._options.get("accumulate")
        ranges = self._ranges(model, args, kwargs, rung)
        if ranges is not None:
            args, kwargs = largest(args, kwargs, ranges)
        captured = capture_once(model, args, kwargs, gradients_leave=leave, on_disk=self._on_disk, ranges=ranges)
        return captured, (args, kwargs)

    def _ranges(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], rung: Rung | None
    ) -> Ranges | None:
        if self._dynamic is None or rung is None:
            return None
        return rung.of(ranges_of(model, args, kwargs, self._dynamic))

    def widened(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: InputGeometry,
        holds: Mapping[Rung, Ranges | None],
    ) -> tuple[InputGeometry, Rung | None]:
        """The geometry that a plan for such a call is made for: that of the largest shape of a
        rung, and that rung: the smallest that holds for the call, after the first plan, which is for all. ``holds``: by
        rung, for what the plan that is there holds. ``inputs`` and None for a call that is planned for itself."""
        if self._dynamic is None:
            return inputs, None
        ranges = self._of_calls.get(inputs.structure)
        if ranges is None:
            ordered = {name: kwargs[name] for name in sorted(kwargs)}
            try:
                ranges = self._of_calls[inputs.structure] = ranges_of(model, args, ordered, self._dynamic)
            except ConfigError:
                if not holds:
                    raise
                return inputs, None
        sizes = [shape[0] for shape in inputs.shapes]
        found: dict[str, int] = {}
        for position, axes in ranges.inputs.items():
            for size, name in zip(sizes[position], axes, strict=True):
                if name is not None and found.setdefault(name, size) != size:
                    return inputs, None
        ones = frozenset(name for name, size in found.items() if size == 1)
        for fixed in dict.fromkeys((frozenset(), ones)):
            for rung in self._rungs_of(ranges, fixed, found) if holds else [Rung(fixed)]:
                known = holds.get(rung, rung.of(ranges))
                if known is not None and known.contains(found):
                    return _largest_geometry(inputs, known), rung
        return inputs, None

    def _rungs_of(self, ranges: Ranges, fixed: frozenset[str], found: Mapping[str, int]) -> list[Rung]:
        """Of those that are large enough, the smallest first."""
        left = ranges.without(fixed)
        if left is None:
            return []
        longest = _longest(left)
        caps = [-(-longest.most >> step) for step in range(1, self._rungs)]
        return [Rung(fixed, cap) for cap in sorted(caps) if cap >= found[longest.name]] + [Rung(fixed)]

    def _key(
        self,
        model: torch.nn.Module,
        captured: Captured,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> str:
        """All that a plan depends on but the budget."""
        said = {name: value for name, value in options.items() if name not in ("progress", "cache", "dynamic")}
        cast = autocast.state(device_type(model, (args, kwargs)))
        return kept_plans.key_of(
            captured.graph.fingerprint(),
            sorted(said.items()),
            environment(captured.graph.device),
            None if cast is None else sorted(cast.items()),
            [module.training for module in model.modules()],
            describe_inputs(args, kwargs),
            None if captured.ranges is None else described_ranges(captured.ranges),
        )


def _largest_geometry(inputs: InputGeometry, ranges: Ranges) -> InputGeometry:
    shapes, largest_of = list(inputs.shapes), ranges.largest
    for position, axes in ranges.inputs.items():
        sizes = zip(shapes[position][0], axes, strict=True)
        shape = tuple(size if name is None else largest_of[name] for size, name in sizes)
        shapes[position] = (shape, *shapes[position][1:])
    return replace(inputs, shapes=tuple(shapes))


def options_of(plan: Plan) -> dict[str, Any]:
    """The options of ``monet.plan`` that ``plan`` was made with, as far as they are part of it."""
    made = plan.model
    return {
        "exact": made.get("exact", False),
        "fused": made.get("fused", False),
        "accumulate": made.get("accumulate", False),
        "gradients": made.get("gradients", FREED),
        "bucket_bytes": plan.fixed.get("buckets", 0),
    }


def _counted_beside(model: torch.nn.Module, options: Mapping[str, Any]) -> dict[str, int]:
    """The option that counts the buckets of ``DistributedDataParallel``, in a call inside of it."""
    if "bucket_bytes" in options or (buckets := parallel.gradient_bytes(model)) == 0:
        return {}
    if options.get("accumulate"):
        raise ExecutionError(parallel.ACCUMULATES)
    return {"bucket_bytes": buckets}


def _require_made(model: torch.nn.Module) -> None:
    """Raises ``CaptureError`` for parameters of a class that is neither torch's nor made of other tensors: the capture
    refuses the latter."""
    for name, parameter in model.named_parameters():
        if type(parameter) not in PLAIN and is_plain(parameter):
            raise CaptureError(
                f"{name} is a {type(parameter).__name__}, and plans are for plain parameters: a lazy model can be "
                "planned after it has run once"
            )


def _detached(leaf: Any) -> Any:
    """A tensor without the graph that it comes from, with the same memory."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)


def without_cache_of_keys(model: torch.nn.Module) -> AbstractContextManager[Any]:
    """A context in which models of transformers make no cache of keys and values, an object that no plan can hold and
    that training does not need."""
    configs = {id(config): config for module in model.modules() if _has_cache(config := _config(module))}
    return _Without(list(configs.values())) if configs else nullcontext()


def _config(module: torch.nn.Module) -> Any:
    return module.__dict__.get("config")


def _has_cache(config: Any) -> bool:
    return getattr(config, "use_cache", False) is True


class _Without:
    def __init__(self, configs: list[Any]) -> None:
        self._configs = configs

    def __enter__(self) -> None:
        for config in self._configs:
            config.use_cache = False

    def __exit__(self, *_: object) -> None:
        for config in self._configs:
            config.use_cache = True
