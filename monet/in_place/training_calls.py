"""Decides how each training call of a model is run: by a plan for its geometry, or as eager PyTorch runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch

from monet.errors import ConfigError, MonetError, PlanMismatch
from monet.executor.arena_group import ArenaGroup
from monet.in_place.call_geometry import CallGeometry, call_geometry, difference
from monet.in_place.plan_source import Planned, PlanSource

logger = logging.getLogger(__name__)

OnMismatch: TypeAlias = Literal["eager", "replan", "error"]
RULES = ("eager", "replan", "error")
MOST_PLANS = 8

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
    "it is called again before the backward pass of the call before, and there is one arena for both (call backward "
    "first, or put both batches into one call)"
)
_OBJECT = "an argument is an object that is neither tensor, number nor text, for which no plan can be made"


REPLACED = "%s has gradient checkpointing: the plan takes its place and decides itself what is computed again"


class PlanFamily:
    """Plans over one arena of the largest size, and the rule for what is not as planned.

    ``name``: of what is called, for messages. ``made``: plans so far.
    """

    def __init__(self, name: str, rule: OnMismatch, max_plans: int) -> None:
        if rule not in RULES:
            raise ConfigError(f"on_mismatch must be one of {', '.join(map(repr, RULES))}, not {rule!r}")
        if max_plans < 1:
            raise ConfigError(f"max_plans must be at least 1, not {max_plans}")
        self.name, self.rule, self.max_plans = name, rule, max_plans
        self.group = ArenaGroup()
        self.made = 0
        self._told: set[str] = set()

    def may_plan(self, sentence: str, *, instead: bool = False) -> bool:
        """Whether there may be a plan more, or one ``instead`` of another; tells where there are too many."""
        if self.made < self.max_plans or instead:
            return True
        self.tell("max_plans", f"{sentence}; there are max_plans={self.max_plans} plans already")
        return False

    def refuse(self, kind: str, sentence: str) -> None:
        """Raise or tell, by the rule."""
        if self.rule == "error":
            raise PlanMismatch(f"{self.name}: {sentence}")
        self.tell(kind, sentence)

    def tell(self, kind: str, sentence: str) -> None:
        """Say what is not as planned, once a kind."""
        self.note(
            kind,
            "%s is called not as planned, and such calls run without a plan, outside of the budget: %s (told once)",
            sentence,
        )

    def note(self, kind: str, sentence: str, *more: str) -> None:
        """Say ``sentence`` of what is called, once a kind."""
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(sentence, self.name, *more)


class TrainingCalls:
    """Plans by the geometry of calls, and what is done about any other call.

    ``source``: makes plans. ``family``: what they belong to, with plans of others perhaps.
    ``planned_calls``, ``eager_calls``: training calls so far that ran by a plan, and without.
    """

    def __init__(
        self, model: torch.nn.Module, source: PlanSource, family: PlanFamily, apart: Callable[[], Any]
    ) -> None:
        """``apart``: a context in which ``model`` can be captured."""
        self.model = model
        self.planned_calls = self.eager_calls = 0
        self.family = family
        self._source, self._apart = source, apart
        self._planned: dict[CallGeometry, Planned | None] = {}  # None: no plan could be made for it
        self._forward: list[Any] = []  # kept, for geometries to name them by identity

    @property
    def modules(self) -> tuple[Planned, ...]:
        """What was planned, in that order."""
        return tuple(planned for planned in self._planned.values() if planned is not None)

    def add(self, geometry: CallGeometry, planned: Planned) -> None:
        """Run calls of this geometry by ``planned``. While no step is under way."""
        self._planned[geometry] = planned
        self.family.group.add(planned.module)
        self._forward.append(self.model.__dict__.get("forward"))
        self.family.made += 1

    def call(self, eager: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of one training call. ``eager``: the model's own forward.

        Raises ``PlanMismatch`` by the rule, and what ``monet.plan`` raises where the first plan cannot be made.
        """
        geometry = call_geometry(self.model, args, kwargs)
        if geometry is not None and not geometry.is_trained:
            return eager(*args, **kwargs)
        for again in (False, True):
            planned = self._planned_for(geometry, args, kwargs)
            if planned is None:
                break
            refusal = None
            try:
                result = planned.module.forward(*args, **kwargs)
            except PlanMismatch as error:  # raised before anything has run
                refusal = str(error)
            assert geometry is not None
            if refusal is None:
                self.planned_calls += 1
                if planned.recalled:
                    self._planned[geometry] = replace(planned, recalled=False)
                return result
            may_replan = planned.recalled or self.family.rule == "replan"
            if again or not may_replan or not self.family.may_plan(refusal, instead=planned.recalled):
                self.family.refuse("model", refusal)
                break
            self.family.group.remove(planned.module)
            del self._planned[geometry]
            self._plan(geometry, args, kwargs, anew=True)
        self.eager_calls += 1
        return eager(*args, **kwargs)

    def _planned_for(
        self, geometry: CallGeometry | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Planned | None:
        """What runs the call; None: the model itself."""
        if geometry is None:
            self.family.refuse("object", _OBJECT)
            return None
        if self.family.group.is_pending:
            self.family.refuse("pending", _PENDING)
            return None
        if geometry in self._planned:
            return self._planned[geometry]
        if self.family.made == 0:
            self._plan(geometry, args, kwargs)
        else:
            kind, sentence = self._difference(geometry, args, kwargs)
            if self.family.rule != "replan":
                self.family.refuse(kind, sentence)
                return None
            if not self.family.may_plan(sentence):
                return None
            try:
                self._plan(geometry, args, kwargs)
            except MonetError as error:
                self._planned[geometry] = None
                self.family.tell("unplanned", f"no plan can be made for another call: {error}")
        return self._planned[geometry]

    def _plan(
        self, geometry: CallGeometry, args: tuple[Any, ...], kwargs: dict[str, Any], *, anew: bool = False
    ) -> None:
        with self._apart():
            planned = self._source.planned(self.model, args, kwargs, anew=anew)
        self.add(geometry, planned)

    def _difference(self, geometry: CallGeometry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        """The kind and the sentence of what is not as in the plan that is closest: the last that differs latest."""
        if not self._planned:
            return "graph", _SENTENCES["graph"]
        differences = {other: difference(other, geometry) or "" for other in self._planned}
        order = list(CallGeometry.__dataclass_fields__)
        closest = max(differences, key=lambda other: order.index(differences[other]))
        kind, planned = differences[closest], self._planned[closest]
        sentence = _SENTENCES.get(kind, f"{kind} differ")
        if planned is not None:
            try:
                planned.module.check(args, kwargs)
            except PlanMismatch as error:
                sentence = str(error)
        return kind, sentence
