"""Run by a test in a process of its own: measured and promised peak of a step that moves tensors, in bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from moved_steps import CASES, case_model, moved_plan
from peak_meter import measured_peak_bytes

from monet.native import allocator


def main(case: str, folder: Path) -> None:
    assert allocator.available()
    plan = moved_plan(case, folder)
    print(measured_peak_bytes(case_model(case), plan, CASES[case][1]), plan.peak_bytes)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
