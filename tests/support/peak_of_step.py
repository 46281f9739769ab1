"""Run by a test in a process of its own: measured and promised peak of one planned step, in bytes."""

from __future__ import annotations

import sys

from module_cases import CASES, case_model, case_plan
from peak_meter import measured_peak_bytes

from monet.native import allocator


def main(case: str) -> None:
    assert allocator.available()
    model, make = case_model(case), CASES[case][1]
    plan = case_plan(case, "95%" if case == "residual" else "10GB").plan
    print(measured_peak_bytes(model, plan, make), plan.peak_bytes)


if __name__ == "__main__":
    main(sys.argv[1])
