"""Decides how each training call of a model is run: by a plan for its geometry, or as eager PyTorch runs it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from monet.api.in_place.call_geometry import (
    CallGeometry,
    InputGeometry,
    call_geometry,
    difference,
    input_geometry,
    planned_geometry,
    quick_key,
)  # fmt: skip
from monet.api.in_place.first_plan import FirstPlan
from monet.api.in_place.inner_checkpoints import noting_checkpoints
from monet.api.in_place.model_walk import ModelWalk
from monet.api.in_place.plan_family import REPLACED, PlanFamily
from monet.api.in_place.plan_source import Planned, PlanSource, Rung
from monet.api.in_place.ranks import Processes, Ranks, failure, portable
from monet.api.in_place.tuning import WORTH, Tuning
from monet.base.sizes import Ranges
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.lifted_graph import LiftedGraph
from monet.errors import CONDITION, InfeasibleBudget, MonetError, PlanMismatch, SolverError, StatefulForward
from monet.executor.arena_group import ArenaGroup
from monet.executor.module import MonetModule
from monet.plans.document import plan_text
from monet.plans.plan import Plan

logger = logging.getLogger(__name__)

# What differs, where the plan itself does not say it.
_SENTENCES = {
    "forward": "forward of the model was replaced after planning",
    "parameters": "other parameters require a gradient than when planning",
    "structure": "the arguments have another structure than when planning",
    "shapes": "an input differs from the planned one",
    "graph": "torch.compile made another graph of it, for inputs or modes that differ",
    "modes": "submodules are in other modes than when planning",
}
_PENDING = (
    "it is called again before the backward pass of the call before, and there is no arena more for it (call backward "
    "first, put both batches into one call, or give concurrent=2: an arena for each of two)"
)
_OBJECT = "an argument is an object that is neither tensor, number nor text, for which no plan can be made"
_NO_PLAN: Any = object()
_UNTRAINED: Any = object()
_AGAIN: Any = object()
_NO_RANGE = "%s: calls of other shapes are planned one by one, if at all, since no plan holds for all of them: %s"
_MOST_KEYS = 1000


class TrainingCalls:
    """Plans by the geometry of calls, and what is done about any other call.

    ``source``: makes plans. ``family``: what they belong to, with plans of others perhaps.
    ``planned_calls``, ``eager_calls``: training calls so far that ran by a plan, and without.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        source: PlanSource,
        family: PlanFamily,
        apart: Callable[[], Any],
        processes: Processes | None = None,
        tune_steps: int = 0,
    ) -> None:
        """``apart``: a context in which ``model`` can be captured. ``processes``: as in ``Ranks``. ``tune_steps``: of
        each plan for one shape, how many are timed, so that a faster one may take its place; 0: none."""
        self.model = model
        self._ranks = Ranks(model, family, processes)
        self.planned_calls = self.eager_calls = 0
        self.family = family
        self._source, self._apart = source, apart
        self._walk = ModelWalk(model)
        self._planned: dict[CallGeometry, Planned | None] = {}  # None: no plan could be made for it
        self._modules: dict[CallGeometry, dict[ArenaGroup, MonetModule]] = {}
        self._inputs: set[InputGeometry] = set()  # of all in _planned
        self._never: set[Hashable] = set()  # keys of arguments that no plan is for, and none will be
        self._rungs: dict[InputGeometry, Rung] = {}  # of those that stand for many shapes
        self._holds: dict[Rung, Ranges | None] = {}  # for what shapes their plans hold
        self._forward: list[Any] = []  # kept, for geometries to name them by identity
        self._tune_steps = tune_steps
        self._tunings: dict[CallGeometry, Tuning] = {}

    @property
    def modules(self) -> tuple[Planned, ...]:
        """What was planned, in that order."""
        return tuple(planned for planned in self._planned.values() if planned is not None)

    def add(self, geometry: CallGeometry, planned: Planned, group: ArenaGroup | None = None) -> None:
        """Run calls of this geometry by ``planned``, over the arena of ``group``, or of the family's first. While no
        step is under way there."""
        group = group or self.family.first
        self._planned[geometry] = planned
        self._modules[geometry] = {}
        self._inputs.add(geometry.inputs)
        self._never.clear()
        self._forward.append(self.model.__dict__.get("forward"))
        self.family.made += 1
        self.family.budget_bytes = self.family.budget_bytes or planned.module.plan.budget_bytes
        if planned.ranges is not None:
            self._rungs.setdefault(geometry.inputs, Rung(geometry.inputs.kind))
            self._holds[self._rungs[geometry.inputs]] = planned.ranges
        self._put(geometry, planned.module, group)

    def _put(self, geometry: CallGeometry, module: MonetModule, group: ArenaGroup) -> None:
        self._modules[geometry][group] = module
        group.add(module)
        self.family.tell_sum()

    def call(self, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of one training call. ``eager``: the model's own forward.

        Raises ``PlanMismatch`` by the rule, and what ``monet.plan`` raises where the first plan cannot be made.
        """
        processes = self._ranks.to_agree_with()
        key = quick_key(args, kwargs)
        if processes is not None or key is None or key not in self._never:
            inputs = input_geometry(args, kwargs)
            result = _AGAIN
            while result is _AGAIN:
                result = self._by_any_plan(inputs, key, processes, args, kwargs)
            if result is _UNTRAINED:
                return eager(*args, **kwargs)
            if result is not _NO_PLAN:
                self.planned_calls += 1
                return result
        self.eager_calls += 1
        return eager(*args, **kwargs)

    def _by_any_plan(
        self,
        inputs: InputGeometry | None,
        key: Hashable | None,
        processes: Processes | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call; ``_NO_PLAN`` where the model itself runs, ``_UNTRAINED`` where it would anyway, and
        ``_AGAIN`` where there is no plan for the many shapes that one was to be for."""
        rung = None
        if inputs is not None:
            inputs, rung = self._source.widened(
                self.model, args, kwargs, inputs, self._holds, self._inputs, alone=self._ranks.alone
            )
            if rung is not None:
                self._rungs[inputs] = rung
        geometry = None if inputs is None else call_geometry(self.model, inputs, self._walk)
        if geometry is not None and not geometry.is_trained:
            return _UNTRAINED
        reason = None if processes is None else self._agree(processes, geometry, args, kwargs)
        if geometry is None or reason is not None:
            self.family.refuse("object", reason or _OBJECT)
            return _NO_PLAN
        if self._is_too_many(geometry):
            self._refuse(geometry, args, kwargs)
            self._never_again(key)
            return _NO_PLAN
        result = self._in_an_arena(geometry, args, kwargs)
        return _AGAIN if result is _NO_PLAN and rung is not None and self._source.has_given_up(rung) else result

    def _is_too_many(self, geometry: CallGeometry) -> bool:
        if geometry.inputs in self._rungs:
            return geometry not in self._planned and self.family.made >= self.family.max_plans
        if not self.family.is_full or geometry.inputs in self._inputs:
            return False
        return not self._is_promised(geometry) and not self._is_beside(geometry)

    def _is_beside(self, geometry: CallGeometry) -> bool:
        """Whether it gets a plan without being asked for: it is as one that was planned, but for which of the inputs
        require a gradient, as where a discriminator is called for the generator's sake."""
        if not self._source.finds_out or not self._ranks.alone or self.family.made >= self.family.max_plans:
            return False
        return any(known.but_for_gradients == geometry.but_for_gradients for known in self._planned)

    def _is_promised(self, geometry: CallGeometry) -> bool:
        said = self.family.promised
        return said is not None and said.geometry is not None and portable(geometry) == said.geometry

    def _never_again(self, key: Hashable | None) -> None:
        """Such arguments need no other look: whatever the modes, the threads or the precision, no plan is for them."""
        if len(self._never) >= _MOST_KEYS:
            self._never.clear()
        if key is not None:
            self._never.add(key)

    def _in_an_arena(self, geometry: CallGeometry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        group = self.family.claim()
        if group is None:
            self.family.refuse("pending", _PENDING)
            return _NO_PLAN
        try:
            return self._by_plan(geometry, group, args, kwargs)
        finally:
            group.release()

    def _by_plan(self, geometry: CallGeometry, group: ArenaGroup, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for again in (False, True):
            planned = self._planned_for(geometry, group, args, kwargs)
            if planned is not None and self._is_tuned_here(geometry, planned):
                planned = self._tuned(geometry, planned, group, args, kwargs)
            if planned is None:
                break
            module, refusal, place = self._modules[geometry].get(group), None, ""
            if module is None:
                module = planned.module.beside()
                self._put(geometry, module, group)
            try:
                result = module.forward(*args, **kwargs)
            except PlanMismatch as error:  # raised before anything has run, or with nothing of it left
                refusal, place = str(error), error.place
            if refusal is None:
                if planned.recalled:
                    self._planned[geometry] = replace(planned, recalled=False)
                return result
            may_replan = planned.recalled or self.family.rule == "replan"
            if (
                again
                or place == CONDITION
                or not may_replan
                or not self.family.may_plan(refusal, instead=planned.recalled)
            ):
                self.family.refuse(place or "model", refusal)
                break
            self._forget(geometry)
            make = self._plan if planned.recalled else self._plan_another
            make(geometry, group, args, kwargs, anew=not place)  # a plan on disk is of the model as it is
        return _NO_PLAN

    def _is_tuned_here(self, geometry: CallGeometry, planned: Planned) -> bool:
        """Whether its plan may give way to a faster one: it is for one shape, one process and one step at a time."""
        if self._tune_steps == 0 or planned.recalled or planned.tuned or planned.ranges is not None:
            return False
        plan = planned.module.plan
        return plan.second_bytes == 0 and self._ranks.alone and self.family.concurrent == 1

    def _tuned(
        self,
        geometry: CallGeometry,
        planned: Planned,
        group: ArenaGroup,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Planned:
        """What runs the call, while no step is under way: once its steps were timed, one that is planned with their
        times, where that is to be faster; once that was timed as well, the faster of the two."""
        tuning = self._tunings.setdefault(geometry, Tuning(self._tune_steps))
        if tuning.over:
            return planned
        ended = tuning.before_call(planned.module)
        if ended == "timing" or not _runs(planned, args, kwargs):  # else not as planned, for which there is a rule
            return planned
        tuning.over = True
        if tuning.first is None:
            if ended == "given up":
                return planned
            other = self._planned_with(tuning, args, kwargs)
            if other is None:
                return self._settled(geometry, planned, "%s: no other plan is faster by the times of its steps")
            tuning.first, tuning.over = (planned.module.plan, planned.key, tuning.step_s), False
            planned = self._instead(geometry, other, group)
            tuning.before_call(planned.module)
            return planned
        plan, key, step_s = tuning.first
        took_s = tuning.step_s if ended == "timed" else math.inf
        said = f"{1e3 * step_s:,.0f} ms a step by the first plan, {1e3 * took_s:,.0f} by one with its times"
        if took_s <= step_s:
            return self._settled(geometry, planned, "%s: %s, which stays", said)
        with self._apart():
            guard = ModelGuard(self.model, own_hooks=False)
            first = self._source.adopted(self.model, args, kwargs, plan, guard)
        planned = self._instead(geometry, replace(first, key=key), group)
        if ended == "given up":
            return planned
        return self._settled(geometry, planned, "%s: %s; the first one stays", said)

    def _planned_with(self, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Planned | None:
        """A plan with the costs that steps had, where it is to be faster than these."""
        guard = ModelGuard(self.model, own_hooks=False)
        try:
            with self._apart():
                other = self._source.planned(
                    self.model, args, kwargs, guard, share_bytes=self.family.budget_bytes, seconds=tuning.seconds
                )
        except (InfeasibleBudget, SolverError):  # the search found none in time; the first is there
            return None
        return other if other.module.plan.solver["objective_s"] < (1 - WORTH) * tuning.step_s else None

    def _instead(self, geometry: CallGeometry, planned: Planned, group: ArenaGroup) -> Planned:
        """It runs such calls from here on."""
        tuning = self._tunings[geometry]
        self._forget(geometry)
        self.family.made -= 1
        self.add(geometry, planned, group)
        self._tunings[geometry] = tuning
        return planned

    def _settled(self, geometry: CallGeometry, planned: Planned, sentence: str, *more: str) -> Planned:
        self.family.note(f"tuned {hash(geometry)}", sentence, *more)
        self._planned[geometry] = planned = replace(planned, tuned=True)
        self._source.keep_tuned(planned)
        return planned

    def _forget(self, geometry: CallGeometry) -> None:
        del self._planned[geometry]
        self._tunings.pop(geometry, None)
        for group, module in self._modules.pop(geometry).items():
            if not group.is_pending:  # else perhaps by this very module, whose step the group must know of
                group.remove(module)

    def _planned_for(
        self, geometry: CallGeometry, group: ArenaGroup, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Planned | None:
        """What runs the call; None: the model itself."""
        if geometry in self._planned:
            return self._planned[geometry]
        if self._is_promised(geometry) and self._take_promised(geometry, args, kwargs):
            return self._planned[geometry]
        if self.family.made == 0:
            try:
                self._plan(geometry, group, args, kwargs)
            except StatefulForward:
                if self.eager_calls or isinstance(self.model, LiftedGraph):
                    raise
                logger.info("%s may be complete after its first call, and is planned in the second", self.family.name)
                return None
            except MonetError as error:
                self.family.refusal = str(error)
                raise
        elif geometry.inputs in self._rungs and self._differs_in_shapes(geometry):
            # More of the range that was asked for.
            self._plan_another(geometry, group, args, kwargs)
        elif self._is_beside(geometry):
            self._plan_another(geometry, group, args, kwargs)
        elif self.family.rule != "replan" or self.family.is_full:
            self._refuse(geometry, args, kwargs)
            return None
        else:
            self._plan_another(geometry, group, args, kwargs)
        return self._planned.get(geometry)

    def _differs_in_shapes(self, geometry: CallGeometry) -> bool:
        """Whether some plan is for such calls, but for their shapes."""
        return any(difference(known, geometry) == "shapes" for known in self._planned)

    def _plan_another(
        self,
        geometry: CallGeometry,
        group: ArenaGroup,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        anew: bool = False,
    ) -> None:
        """A plan for calls that are not as the first; they run without one where none can be made, which is told."""
        try:
            self._plan(geometry, group, args, kwargs, anew=anew)
        except MonetError as error:
            rung = self._rungs.pop(geometry.inputs, None)
            if rung is None:
                self._planned[geometry] = None
                self._inputs.add(geometry.inputs)
                self.family.tell("unplanned", f"no plan can be made for another call: {error}")
            else:
                too_large = isinstance(error, InfeasibleBudget)
                self._source.give_up(rung, too_large=too_large)
                if not too_large:
                    self.family.note("range", _NO_RANGE, str(error))

    def _plan(
        self,
        geometry: CallGeometry,
        group: ArenaGroup,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        anew: bool = False,
    ) -> None:
        guard = ModelGuard(self.model, own_hooks=False)
        with self._apart(), noting_checkpoints() as checkpoints:
            share_bytes, rung = self.family.budget_bytes, self._rungs.get(geometry.inputs)
            plans = [] if rung is None else [one.module.plan for one in self.modules]
            planned = self._source.planned(
                self.model, args, kwargs, guard, anew=anew, share_bytes=share_bytes,
                rung=rung, most_fixed=max((plan.fixed_bytes for plan in plans), default=0),
                tuned=self._tune_steps > 0,
            )  # fmt: skip
        if checkpoints:
            self.family.note("checkpoints", REPLACED)
        self.add(geometry, planned, group)

    def _agree(
        self, processes: Processes, geometry: CallGeometry | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """Have the same plan as all of ``processes``, which are all in this: rank 0's, for its call. Returns why
        there is none, where rank 0's call cannot be planned.

        Raises in every process where any of them fails: rank 0 what ``monet.plan`` raises, else ``MonetError`` and
        ``PlanMismatch``.
        """
        self._ranks.require_equal(processes, [planned.module.plan for planned in self.modules])
        if not self.modules:
            is_first, error, said = self._ranks.is_first(processes), None, None
            if is_first:
                said, error = self._first_plan(geometry, args, kwargs)
            said = self._ranks.from_first(processes, said)
            if error is not None:
                raise error
            if said.failed:
                raise MonetError(f"rank 0, which plans for all, could not: {said.reason}")
            if said.plan is None:
                return said.reason
            refusal = None if is_first else self._adopt(said, geometry, args, kwargs)
            self._ranks.require_all(processes, refusal)
        self._ranks.agreed()
        return None

    def _first_plan(
        self, geometry: CallGeometry | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[FirstPlan, BaseException | None]:
        """What rank 0 tells the others, and what it raises then."""
        if geometry is None:
            return FirstPlan(None, None, _OBJECT), None
        try:
            self._plan(geometry, self.family.first, args, kwargs)
            (planned,) = self.modules
            if planned.recalled and not _runs(planned, args, kwargs):
                self._forget(geometry)
                self._plan(geometry, self.family.first, args, kwargs, anew=True)
                (planned,) = self.modules
            return FirstPlan(plan_text(planned.module.plan), portable(geometry)), None
        except (Exception, KeyboardInterrupt) as error:  # whatever it is: the others wait for a word
            return FirstPlan(None, None, failure(error), failed=True), error

    def _adopt(
        self, said: FirstPlan, geometry: CallGeometry | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """Run calls as rank 0's was by its plan; returns why that is not possible here."""
        assert said.plan is not None
        try:
            plan = Plan.of_content(said.plan.encode())
            guard = ModelGuard(self.model, own_hooks=False)
            with self._apart():
                if geometry is not None and portable(geometry) == said.geometry is not None:
                    planned = self._source.adopted(self.model, args, kwargs, plan, guard)
                elif isinstance(self.model, LiftedGraph):  # a graph is for one shape: another one will run rank 0's
                    self.family.promised = said
                    self.family.budget_bytes = plan.budget_bytes
                    self.family.made += 1
                    return None
                else:  # a first batch of another shape, which is then called not as planned
                    planned = Planned(MonetModule(self.model, plan, guard=guard))
                    geometry = planned_geometry(self.model, plan)
            self.add(geometry, planned)
        except Exception as error:
            return failure(error)
        return None

    def _take_promised(self, geometry: CallGeometry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Run calls by what rank 0 has planned for the same ones; returns whether this is the same graph."""
        said = self.family.promised
        assert said is not None and said.plan is not None
        try:
            guard = ModelGuard(self.model, own_hooks=False)
            planned = self._source.adopted(self.model, args, kwargs, Plan.of_content(said.plan.encode()), guard)
        except PlanMismatch:
            return False
        self.family.promised = None
        self.family.made -= 1  # it was counted when it was promised
        self.add(geometry, planned)
        return True

    def _refuse(self, geometry: CallGeometry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise or tell what is not as in the plan that is closest: the last that differs latest."""
        kind, planned = "graph", None
        if self._planned:
            differences = {other: difference(other, geometry) or "" for other in self._planned}
            order = list(CallGeometry.__dataclass_fields__)
            closest = max(differences, key=lambda other: order.index(differences[other]))
            kind, planned = differences[closest], self._planned[closest]
        if self.family.has_told(kind):
            return
        sentence = _SENTENCES.get(kind, f"{kind} differ")
        if planned is not None:
            try:
                planned.module.check(args, kwargs)
            except PlanMismatch as error:
                sentence = str(error)
        if self.family.rule == "replan":
            self.family.may_plan(sentence)
        else:
            self.family.refuse(kind, sentence)


def _runs(planned: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a plan from disk can be used with the weights that there are now."""
    try:
        planned.module.check(args, kwargs)
    except PlanMismatch:
        return False
    return True
