"""Where the plan of a training call comes from: a captured step, planned anew or found on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.api.in_place import kept_plans
from monet.api.in_place.call_geometry import InputGeometry, in_order
from monet.api.in_place.seen_sizes import SeenSizes
from monet.base.amounts import ByteBudget, ByteCount, PeakShare, parse_budget
from monet.base.sizes import Dimension, Ranges
from monet.capture import Captured, autocast, capture_once
from monet.capture.captured import another_each_time, device_type
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.input_geometry import describe_inputs, described_ranges
from monet.capture.plain_tensors import PLAIN, is_plain, require_not_lazy
from monet.capture.varying_inputs import argument_names, for_call, given_axes, largest, ranges_of
from monet.errors import CaptureError, ConfigError, ExecutionError, PlanMismatch
from monet.executor import parallel
from monet.executor.module import MonetModule, graph_of
from monet.ops.measuring.signature import environment
from monet.plans.format import FREED
from monet.plans.plan import Plan

logger = logging.getLogger(__name__)

MakePlan = Callable[..., Plan]
"""``monet.plan``; with ``seconds``, what operators take in steps, by signature."""
TUNED = "tuned"

FOUND_OUT = "found out"
"""For the option ``dynamic``: what varies is what the calls show."""


@dataclass(frozen=True, slots=True)
class Rung:
    """What a plan for many shapes is for. ``kind``: of the call's arguments. ``number``: of the ranges that were
    asked for, or found out, for such calls. ``fixed``: dimensions that it has one size of. ``cap``: the largest size of
    the longest dimension; 0 for that of the ranges."""

    kind: InputGeometry
    number: int = 0
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
    not run yet: weights may have changed so that it must not be used, see ``monet.executor.runner``. ``key``: what the
    plan is kept on disk under, if it is. ``tuned``: it is the faster one of two that were timed."""

    module: MonetModule
    recalled: bool = False
    key: str = ""
    tuned: bool = False

    @property
    def ranges(self) -> Ranges | None:
        """For which shapes the plan holds; None for one shape."""
        return self.module._captured.ranges


class PlanSource:
    """Plans for one ``budget`` with one set of options of ``monet.plan``. Raises ``ConfigError`` for what is no
    budget."""

    def __init__(self, make_plan: MakePlan, budget: str | int, options: Mapping[str, Any], rungs: int = 1) -> None:
        """``rungs``: plans for rising sizes of the longest dimension that varies, each for twice those of the one
        before. Where the option ``dynamic`` is ``FOUND_OUT``, what varies is what calls show."""
        self._make_plan = make_plan
        self.budget = parse_budget(budget)
        self._asked: dict[str, ByteBudget] = {}  # by step: the budget that its plan was first asked for with
        self._options = dict(options)
        self._dynamic = options.get("dynamic")
        self._rungs = rungs
        self._seen: dict[InputGeometry, SeenSizes] = {}  # by the kind of a call
        self._settled: set[InputGeometry] = set()  # kinds of which nothing more is found out
        self._found_out: set[InputGeometry] = set()  # over all that varies
        self._given_up: set[Rung] = set()
        self._ranges: dict[InputGeometry, list[Ranges]] = {}  # by the kind of a call
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
        tuned: bool = False,
        seconds: Mapping[str, Sequence[float]] | None = None,
    ) -> Planned:
        """``model``, which is as ``guard`` knows it, with a plan for such a call. ``anew``: not one from disk.
        ``rung``: the plan is for these shapes of the range that was asked for, with what is fixed as in the call; None:
        for this call alone. ``most_fixed``: bytes that a plan over the same arena holds beside it. ``share_bytes``:
        what a budget that is a share of eager's peak has come to for an earlier plan, and comes to for this one.
        ``tuned``: one from disk is rather the one that was kept as such (``keep_tuned``). ``seconds``: what operators
        take in steps of another plan, by signature; such a plan is not kept.

        Inside of ``DistributedDataParallel`` its buckets are counted. Raises as ``monet.plan``, ``CaptureError`` for
        parameters that are spread over processes, and for a model that is another one each time it is traced,
        ``ExecutionError`` for gradients that it could not reduce, and ``KeyboardInterrupt`` where planning is
        interrupted: nothing is trained by a plan that nobody asked for.
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
        if self._on_disk and not anew and seconds is None:
            for is_tuned in (True, False) if tuned else (False,):
                kept = kept_plans.key_of(key, TUNED) if is_tuned else key
                module = _recalled(kept, model, captured, guard)
                if module is not None:
                    return Planned(module, recalled=True, key=key, tuned=is_tuned)
        options = {"progress": True, **options, **({} if seconds is None else {"seconds": seconds})}
        plan = self._make_plan(model, args, kwargs, budget=budget, **options)
        spared = most_fixed - plan.fixed_bytes
        if spared > 0 and most_fixed + plan.arena_bytes > plan.budget_bytes:
            # It holds less beside the arena than another plan, and must not make that larger than the other leaves it.
            plan = self._make_plan(model, args, kwargs, budget=ByteCount(plan.budget_bytes - spared), **options)
        if plan.solver["status"] == "interrupted":
            raise KeyboardInterrupt
        # Planning has captured the model once more. A plan of another graph is none of this one's, under whose key
        # another model would find it.
        if graph_of(captured, plan).fingerprint() != plan.model["fingerprint"]:
            raise CaptureError(another_each_time(captured.graph, self._captured(model, args, kwargs, rung)[0].graph))
        module = MonetModule(model, plan, captured, guard)
        if self._on_disk and seconds is None:
            kept_plans.keep(key, plan)
            if anew:  # the faster one of another model is none of this
                kept_plans.forget(kept_plans.key_of(key, TUNED))
        return Planned(module, key=key)

    def keep_tuned(self, planned: Planned) -> None:
        """Keep it as the faster one for the next start, which then times nothing."""
        if self._on_disk and planned.key:
            kept_plans.keep(kept_plans.key_of(planned.key, TUNED), planned.module.plan)

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
        ranges = None if rung is None else rung.of(self._ranges[rung.kind][rung.number])
        if ranges is not None:
            ranges = for_call(model, args, in_order(kwargs), kwargs, ranges)
            args, kwargs = largest(args, kwargs, ranges)
        captured = capture_once(model, args, kwargs, gradients_leave=leave, on_disk=self._on_disk, ranges=ranges)
        return captured, (args, kwargs)

    @property
    def finds_out(self) -> bool:
        """Whether plans are made for what calls show, and not only for what was asked for."""
        return self._dynamic == FOUND_OUT

    def widened(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        inputs: InputGeometry,
        holds: Mapping[Rung, Ranges | None],
        known: Container[InputGeometry],
        *,
        alone: bool,
    ) -> tuple[InputGeometry, Rung | None]:
        """The geometry that a plan for such a call is made for: that of the shapes of a rung, and that rung: the
        smallest that holds for the call, after the first plan, which is for all. ``holds``: by rung, for what the plan
        that is there holds. ``known``: what was planned. ``alone``: no other process has to run what this one does, so
        that something may be found out. ``inputs`` and None for a call that is planned for itself."""
        if self._dynamic is None or (self.finds_out and (inputs in known or not alone)):
            return inputs, None
        kind = inputs.kind
        if kind not in self._ranges:
            self._ranges[kind] = self._asked_for(model, args, in_order(kwargs))
        for number, ranges in enumerate(self._ranges[kind]):
            found = self._rung_of(ranges, Rung(kind, number), inputs, holds)
            if found is not None:
                return found
        further = self._further(kind, inputs)
        if further is None or not further.inputs.keys() <= argument_names(model, args, in_order(kwargs)).keys():
            return inputs, None
        self._found_out.add(inputs.over(further))
        self._ranges[kind].append(further)
        return self._rung_of(further, Rung(kind, len(self._ranges[kind]) - 1), inputs, holds) or (inputs, None)

    def give_up(self, rung: Rung, *, too_large: bool) -> None:
        """Have no plan for these shapes together. ``too_large``: for the budget."""
        self._given_up.add(rung)
        seen = self._seen.get(rung.kind)
        if seen is not None:
            # Calls one by one may fit; and up to what was seen, a model may hold that does not for more.
            may_do = not seen.alone if too_large else seen.rounds
            seen.alone, seen.rounds = seen.alone or too_large, seen.rounds and too_large
            if not may_do:
                self._settled.add(rung.kind)

    def has_given_up(self, rung: Rung) -> bool:
        """Whether there is no plan for these shapes together."""
        return rung in self._given_up

    def _asked_for(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Ranges]:
        """For a kind of calls, at the first one; none where it does not have what was asked for. Raises ``ConfigError``
        where that is the very first call."""
        if self.finds_out:
            return []
        assert self._dynamic is not None
        try:
            return [ranges_of(model, args, kwargs, self._dynamic)]
        except ConfigError:
            if not self._ranges:
                raise
            return []

    def _further(self, kind: InputGeometry, inputs: InputGeometry) -> Ranges | None:
        """Ranges that hold this call and those before, where there are such and they are new."""
        if not self.finds_out or kind in self._settled:
            return None
        seen = self._seen.setdefault(kind, SeenSizes(inputs.shapes))
        ranges = seen.with_call(inputs.shapes)
        return None if ranges is None or inputs.over(ranges) in self._found_out else ranges

    def _rung_of(
        self, ranges: Ranges, asked: Rung, inputs: InputGeometry, holds: Mapping[Rung, Ranges | None]
    ) -> tuple[InputGeometry, Rung] | None:
        """As ``widened``; None where no plan for these ranges holds for the call."""
        found: dict[str, int] = {}
        for position, axes in ranges.inputs.items():
            for size, name in zip(inputs.shapes[position][0], axes, strict=True):
                if name is not None and found.setdefault(name, size) != size:
                    return None
        if self.finds_out and inputs.over(ranges) not in self._found_out:
            return None  # another size varies, too
        ones = frozenset(name for name, size in found.items() if size == 1)
        # At a size of 1 more layouts are contiguous, and eager's sums may be in another order.
        exact = ones and self._options.get("exact")
        for fixed in [ones] if exact else dict.fromkeys((frozenset[str](), ones)):
            whole = replace(asked, fixed=fixed)
            for rung in self._rungs_of(whole, ranges, found) if holds else [whole]:
                known = None if rung in self._given_up else holds.get(rung, rung.of(ranges))
                if known is not None and known.contains(found):
                    return inputs.over(known), rung
        return None

    def _rungs_of(self, whole: Rung, ranges: Ranges, found: Mapping[str, int]) -> list[Rung]:
        """Of those that are large enough, the smallest first."""
        left = ranges.without(whole.fixed)
        if left is None:
            return []
        longest = _longest(left)
        caps = [-(-longest.most >> step) for step in range(1, self._rungs)]
        return [replace(whole, cap=cap) for cap in sorted(caps) if cap >= found[longest.name]] + [whole]

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


def _recalled(key: str, model: torch.nn.Module, captured: Captured, guard: ModelGuard) -> MonetModule | None:
    """``model`` with the plan that is kept on disk. None if there is none, or if it is not of what was captured, or not
    of this machine: it is then removed, which is said."""
    plan = kept_plans.recall(key)
    if plan is None:
        return None
    try:
        return MonetModule(model, plan, captured, guard)
    except PlanMismatch as error:
        logger.warning("a plan that was kept cannot be used, and is made again: %s", error)
        kept_plans.forget(key)
        return None


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
    refuses the latter. Lazy ones are made by the first call: ``StatefulForward``."""
    require_not_lazy(model)
    for name, parameter in model.named_parameters():
        if type(parameter) not in PLAIN and is_plain(parameter):
            raise CaptureError(f"{name} is a {type(parameter).__name__}, and plans are for plain parameters")


def _detached(leaf: Any) -> Any:
    """A tensor without the graph that it comes from, with the same memory."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.requires_grad)
