"""What a profile-guided arena has done, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

from monet.base.amounts import format_bytes


@dataclass(frozen=True, slots=True)
class GuidedReport:
    """Counts are of all steps that ended without an error.

    ``arena_bytes``: the arena, and ``bound_bytes``: no arena for the same requests is smaller; of the kind of step that
    needs most. ``requests``: in steps that had a plan; of them ``served`` lay in the arena where they were planned,
    ``moved`` in a gap of it, since they were not foreseen or their place was taken, ``missed`` found no gap and were
    PyTorch's, and ``unplaced`` were planned to be, since their blocks outlive a step.
    ``plans``: how many were made; ``layout_s``: seconds for all of them. ``peak_bytes``: the most that torch held when
    a step requested something, the whole arena, parameters and all else that was made after monet began to count
    included; tensors that were made before are counted as they were then. ``kinds``: the keys whose plans are kept.
    """

    steps: int
    recorded_steps: int
    failed_steps: int
    kinds: int
    requests: int
    served: int
    moved: int
    unplaced: int
    missed: int
    plans: int
    layout_s: float
    arena_bytes: int
    bound_bytes: int
    peak_bytes: int

    def __str__(self) -> str:
        if self.plans == 0:
            return f"profile-guided arena: no plan yet ({_steps(self.steps)}; a plan is made after a whole one)"
        above = 0.0 if self.bound_bytes == 0 else self.arena_bytes / self.bound_bytes - 1
        proven = "proven least" if above == 0 else f"at most {above:.2%} above the least"
        lines = [
            f"profile-guided arena: {_steps(self.steps)}, {self.recorded_steps} of them only recorded",
            f"  arena     {format_bytes(self.arena_bytes)}, {proven}",
            f"  peak      {format_bytes(self.peak_bytes)}, all that torch held",
            f"  requests  {self.requests:,}: {self._share(self.served)} served where planned, "
            f"{self._share(self.unplaced)} outlive a step, {self.moved:,} moved, {self.missed:,} missed",
            f"  plans     {self.plans} for {self.kinds} kind{'s' if self.kinds != 1 else ''} of steps, "
            f"{self.layout_s:.2f} s of layout",
        ]
        if self.failed_steps:
            lines.append(f"  {_steps(self.failed_steps)} ended by an error, and taught nothing")
        return "\n".join(lines)

    def _share(self, count: int) -> str:
        return f"{count / self.requests:.1%}" if self.requests else "none"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' if count != 1 else ''}"
