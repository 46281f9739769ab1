"""The plan: what ``monet.plan`` makes, a step runs, and a file keeps.

The checker is ``monet.plans.verifier``; it runs on every plan that is made or loaded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from monet.plans.document import plan_of, read_plan, write_plan
from monet.plans.format import PlanData
from monet.plans.text import described, named


@dataclass(frozen=True, slots=True, repr=False)
class Plan(PlanData):
    """A verified training step; its fields are those of ``PlanData``.

    ``print(plan)`` tells in a few lines what it needs, what it costs, and what it moves and runs again.
    """

    def __str__(self) -> str:
        return "\n".join(described(self))

    def __repr__(self) -> str:
        return f"<Plan of {named(self)}: {len(self.steps)} steps in {self.peak_bytes:,} of {self.budget_bytes:,} bytes>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, the same bytes for the same plan; ``path`` is replaced as a whole or not at all.

        Raises InvalidPlan when a field has the wrong type or holds what JSON cannot (NaN, infinity,
        other objects), OSError when the file cannot be written. Does not verify.
        """
        write_plan(self, Path(path))

    @classmethod
    def of(cls, plan: Plan | str | os.PathLike[str]) -> Plan:
        """``plan`` itself, or what its file holds. Raises as ``load``."""
        return plan if isinstance(plan, Plan) else cls.load(plan)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read and verify a plan file. Raises InvalidPlan: which file, where in it, and what is wrong."""
        return cls._of_data(read_plan(Path(path)))

    @classmethod
    def of_content(cls, data: bytes) -> Plan:
        """The plan that a file of these bytes holds. Raises as ``load``."""
        return cls._of_data(plan_of(data))

    @classmethod
    def _of_data(cls, data: PlanData) -> Plan:
        return cls(**{field.name: getattr(data, field.name) for field in fields(data)})
