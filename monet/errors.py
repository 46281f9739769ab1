"""Every error monet raises on purpose: what went wrong, where, by how much, and what to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Sentence: TypeAlias = tuple[str | int, ...]
"""Text in pieces; a whole number among them is an amount of bytes."""


class MonetError(Exception):
    """Base of all errors that a user can act on."""


class ConfigError(MonetError):
    """A configuration file, a model reference or a command-line value is wrong."""


class CaptureError(MonetError):
    """The model's training step cannot be captured as one graph of operators. ``lines``: of the model's code that it is
    about, from the outermost on, as far as torch knows them."""

    lines: str = ""


class StatefulForward(CaptureError):
    """A forward pass that changes the model by which it computes. Many do in their first call only: these can be
    captured after it."""


class ProfileError(MonetError):
    """An operator implementation cannot be measured, or does not behave as its record says."""


class CacheRefused(MonetError):
    """The cache's folder, or a file in it, can be written by others, or belongs to somebody else."""


class InfeasibleBudget(MonetError):
    """No plan fits the budget; ``smallest_bytes`` is the smallest feasible budget known, if any.

    ``reason`` is the message without what to try, ``advice`` that. ``smallest_plan``: the solution that is known to
    need so little, where the planner raises it; ``smallest_bytes`` is then the program's count, before any layout.
    ``counted_bytes``: what every plan needs in the counted order, as the reason says; an arena may do with less.
    ``show`` writes each amount of the message: exactly, until ``refusals_in`` sets the caller's unit. ``full_bytes``:
    what 100% is, where the budget was a share of eager's peak; set by ``refusals_of`` (both in ``monet.base.amounts``).
    """

    def __init__(
        self,
        reason: str | Sentence,
        smallest_bytes: int | None = None,
        *,
        advice: str = "that budget or more, or a smaller batch",
        smallest_plan: object = None,
        counted_bytes: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason: Sentence = (reason,) if isinstance(reason, str) else reason
        self.smallest_bytes = smallest_bytes
        self.advice, self.smallest_plan, self.counted_bytes = advice, smallest_plan, counted_bytes
        self.show: Callable[[int], str] = _exact
        self.full_bytes: int | None = None

    def __str__(self) -> str:
        reason = "".join(part if isinstance(part, str) else self.show(part) for part in self.reason)
        if self.smallest_bytes is None:
            return reason
        less = self.counted_bytes is not None and self.smallest_bytes < self.counted_bytes
        how = ", by another order of the runs or a closer layout than is counted there" if less else ""
        share = "" if self.full_bytes is None else f", {_percent(self.smallest_bytes, self.full_bytes)} of eager's peak"
        least = f"{self.show(self.smallest_bytes)}{share}{how}"
        return f"{reason} The smallest budget known to work is {least}. Try {self.advice}."


def _exact(count: int) -> str:
    return f"{count:,} bytes"


def _percent(count: int, full: int) -> str:
    """Rounded up, so that it works as a budget."""
    tenths = -(-1000 * count // full)
    return f"{tenths // 10}.{tenths % 10}%"


class SolverError(MonetError):
    """The 0-1 solver is missing, unlicensed, too small, or ended without an answer."""


class InvalidPlan(MonetError):
    """A plan file is corrupted, of another version, or fails verification."""


CONDITION = "a condition on values"


class PlanMismatch(MonetError):
    """A valid plan does not belong to this model, input, device, thread count or torch version.

    ``place``: what of the model changed after planning, where that is the reason, whatever it is now; ``CONDITION``
    where a call's values take the model along another path than the planned one; "" else.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class ExecutionError(MonetError):
    """A planned step was used in an order that its one arena cannot serve."""
