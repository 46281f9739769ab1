"""What ``monet plan`` was asked for, and which of its options go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from monet.base.amounts import DEFAULT_UNIT, ByteBudget
from monet.cli.commands.options import PlanningOptions
from monet.planner.ablation import MONET

_REFUSED: Mapping[str, tuple[str, ...]] = {
    "--minimise memory": ("budget", "max_batch", "prove"),
    "--max-batch": ("batch",),
    "--profile": ("measure", "threads", "no_cache", "exact", "fused", "batch", "device", "max_batch", "density"),
}
"""Mode → parameters of the command that contradict it, or that it would ignore."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options of the command, read; see its help."""

    config: str | None
    profile: Path | None
    budget: ByteBudget | None
    minimise: str | None
    batch: int | None
    device: str | None
    max_batch: bool
    max_overhead: float | None
    measure: bool
    output: Path | None
    json_path: Path | None
    variant: str
    prove: bool
    no_cache: bool
    fused: bool
    planning: PlanningOptions
    quiet: bool

    @property
    def unit(self) -> str:
        """The unit that the budget was written in: amounts are shown and refused in it."""
        return DEFAULT_UNIT if self.budget is None else self.budget.unit

    def check(self, context: click.Context) -> None:
        """Refuse options that contradict each other, or that the chosen mode would ignore, with ``UsageError``."""
        modes = {
            "--minimise memory": self.minimise is not None,
            "--max-batch": self.max_batch,
            "--profile": self.profile is not None,
        }
        searches = self.minimise is not None or self.max_batch
        wrong = (
            ((self.config is None) == (self.profile is None), "give either CONFIG or --profile FILE"),
            (
                self.minimise is None and self.budget is None,
                "give --budget, or --minimise memory to find the smallest one",
            ),
            *(
                (mode_is_on and _given(context, name), f"{_spelling(context, name)} does not go with {mode}")
                for mode, mode_is_on in modes.items()
                for name in _REFUSED[mode]
            ),
            (
                self.max_overhead is not None and not searches,
                "--max-overhead goes with --minimise memory or --max-batch",
            ),
            (searches and self.variant != MONET, f"--variant {self.variant} goes with a budget alone"),
        )
        for is_wrong, message in wrong:
            if is_wrong:
                raise click.UsageError(message)


def refuse_for_published(context: click.Context) -> None:
    """Published costs are of no step that could be run: no plan file, and nothing to reserve for an optimiser."""
    for name in ("output", "reserve"):
        if _given(context, name):
            raise click.UsageError(f"{_spelling(context, name)} does not go with --profile")


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def _spelling(context: click.Context, name: str) -> str:
    return next(parameter.opts[0] for parameter in context.command.params if parameter.name == name)
