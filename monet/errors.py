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


class InfeasibleBudget(MonetError):
    """No plan fits the budget; ``smallest_bytes`` is the smallest feasible budget known, if any."""

    def __init__(self, message: str, smallest_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class SolverError(MonetError):
    """The 0-1 solver is missing, unlicensed, too small, or ended without an answer."""


class InvalidPlan(MonetError):
    """A plan file is corrupted, of another version, or fails verification."""


class PlanMismatch(MonetError):
    """A valid plan does not belong to this model, input, device, thread count or torch version."""


class ExecutionError(MonetError):
    """A planned step was used in an order that its one arena cannot serve."""
