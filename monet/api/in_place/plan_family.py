"""Plans that belong together: how many there may be, whose arenas they use, and what is said of them."""

from __future__ import annotations

import logging
import threading
from typing import Literal, TypeAlias

from monet.api.in_place.first_plan import FirstPlan
from monet.errors import CONDITION, ConfigError, PlanMismatch
from monet.executor.arena_group import ArenaGroup

logger = logging.getLogger(__name__)

OnMismatch: TypeAlias = Literal["eager", "replan", "error"]
RULES = ("eager", "replan", "error")
MOST_PLANS = 8
REPLACED = "%s has gradient checkpointing: the plan takes its place and decides itself what is computed again"
_REPLAN = '; on_mismatch="replan" would plan for such calls, too'
_NO_PLAN_FOR = frozenset({"object", "pending", "unplanned", "max_plans", CONDITION})
"""Kinds of calls that no other rule plans for."""
_BESIDE = (
    "%s is called again before the backward pass of the call before: such a step has an arena of its own, and the "
    "promise is the sum, %s bytes"
)


class PlanFamily:
    """Plans over one arena of the largest size, and the rule for what is not as planned.

    ``name``: of what is called, for messages. ``concurrent``: how many steps may be under way at a time; each beyond
    the first has an arena of its own. ``made``: plans so far. ``budget_bytes``: what the first of them was made for,
    and what a share of eager's peak then comes to for all: another share for each shape would be another budget.
    ``agreed``: whether the processes that train together have one plan. ``promised``: what rank 0 said of its first
    call, where this process has met no such call so far.
    """

    def __init__(self, name: str, rule: OnMismatch, max_plans: int, concurrent: int = 1) -> None:
        if rule not in RULES:
            raise ConfigError(f"on_mismatch must be one of {', '.join(map(repr, RULES))}, not {rule!r}")
        if not isinstance(max_plans, int) or isinstance(max_plans, bool) or max_plans < 1:
            raise ConfigError(f"max_plans must be a number from 1 on, not {max_plans!r}")
        if not isinstance(concurrent, int) or isinstance(concurrent, bool) or concurrent < 1:
            raise ConfigError(
                f"concurrent, how many steps may be under way at a time, must be a number from 1 on: {concurrent!r}"
            )
        self.name, self.rule, self.max_plans, self.concurrent = name, rule, max_plans, concurrent
        self.made = 0
        self.budget_bytes: int | None = None
        self.agreed = False
        self.promised: FirstPlan | None = None
        self._groups = [ArenaGroup()]
        self._claiming = threading.Lock()
        self._told: set[str] = set()
        self._reasons: list[str] = []
        self.refusal: str | None = None  # why the first plan could not be made, when that was last tried

    @property
    def first(self) -> ArenaGroup:
        """The arena that steps use where none is under way."""
        return self._groups[0]

    @property
    def peak_bytes(self) -> int:
        """What the plans promise together: the highest peak of one, and what steps beside it take."""
        return self.first.peak_bytes + sum(group.beside_bytes for group in self._groups[1:])

    def claim(self) -> ArenaGroup | None:
        """An arena where a forward pass may begin now, to be released after it; None: there are enough under way."""
        with self._claiming:
            for group in self._groups:
                if group.claim():
                    return group
            if len(self._groups) == self.concurrent:
                return None
            self._groups.append(ArenaGroup())
            self._groups[-1].claim()
            return self._groups[-1]

    def tell_sum(self) -> None:
        """Say what several arenas take together, once for each sum."""
        if len(self._groups) > 1:
            promise = f"{self.peak_bytes:,}"
            self.note(promise, _BESIDE, promise)

    def may_plan(self, sentence: str, *, instead: bool = False) -> bool:
        """Whether there may be a plan more, or one ``instead`` of another; tells where there are too many."""
        if self.made < self.max_plans or instead:
            return True
        self.tell("max_plans", f"{sentence}; there are max_plans={self.max_plans} plans already, give a larger number")
        return False

    @property
    def is_full(self) -> bool:
        """Whether calls of another geometry are run without a plan from now on."""
        return self.made > 0 and (self.rule == "eager" or (self.rule == "replan" and self.made >= self.max_plans))

    def refuse(self, kind: str, sentence: str) -> None:
        """Raise or tell, by the rule."""
        if self.rule == "error":
            raise PlanMismatch(f"{self.name}: {sentence}")
        self.tell(kind, sentence)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why calls ran without a plan so far, as it was told."""
        return tuple(self._reasons)

    def has_told(self, kind: str) -> bool:
        """Whether nothing would be raised or said about a call that differs in this."""
        return self.rule != "error" and ("max_plans" if self.rule == "replan" else kind) in self._told

    def tell(self, kind: str, sentence: str) -> None:
        """Say what is not as planned, once a kind, and the rule that would plan for it."""
        if kind not in self._told:
            self._reasons.append(sentence)
        self.note(
            kind,
            "%s is called not as planned, and such calls run without a plan, outside of the budget: %s%s (told once)",
            sentence,
            _REPLAN if self.rule == "eager" and kind not in _NO_PLAN_FOR else "",
        )

    def note(self, kind: str, sentence: str, *more: str) -> None:
        """Say ``sentence`` of what is called, once a kind."""
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(sentence, self.name, *more)
