"""Every error monet raises on purpose: what went wrong, where, by how much, and what to try."""

from __future__ import annotations


class MonetError(Exception):
    """Base of all errors that a user can act on."""


class ConfigError(MonetError):
    """A configuration file, a model reference or a command-line value is wrong."""


class CaptureError(MonetError):
    """The model's training step cannot be captured as one graph of operators."""


class ProfileError(MonetError):
    """An operator implementation cannot be measured, or does not behave as its record says."""


class CacheRefused(MonetError):
    """The cache's folder, or a file in it, can be written by others, or belongs to somebody else."""


class InfeasibleBudget(MonetError):
    """No plan fits the budget; ``smallest_bytes`` is the smallest feasible budget known, if any.

    ``reason`` is the message without what to try, ``advice`` that. ``smallest_plan``: the solution that is known to
    need so little, where the planner raises it; ``smallest_bytes`` is then the program's count, before any layout.
    """

    def __init__(
        self,
        reason: str,
        smallest_bytes: int | None = None,
        *,
        advice: str = "that budget or more, or a smaller batch",
        smallest_plan: object = None,
    ) -> None:
        known = ""
        if smallest_bytes is not None:
            size = f"{smallest_bytes:,} bytes"
            if smallest_bytes >= 2**20:
                size = f"{smallest_bytes / 2**20:,.1f} MiB ({size})"
            known = f" The smallest budget known to work is {size}. Try {advice}."
        super().__init__(reason + known)
        self.reason, self.smallest_bytes = reason, smallest_bytes
        self.advice, self.smallest_plan = advice, smallest_plan


class SolverError(MonetError):
    """The 0-1 solver is missing, unlicensed, too small, or ended without an answer."""


class InvalidPlan(MonetError):
    """A plan file is corrupted, of another version, or fails verification."""


class PlanMismatch(MonetError):
    """A valid plan does not belong to this model, input, device, thread count or torch version."""


class ExecutionError(MonetError):
    """A planned step was used in an order that its one arena cannot serve."""
