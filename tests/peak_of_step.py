"""Run by a test in a process of its own: measured and promised peak of one planned step, in bytes."""

from __future__ import annotations

import sys

from peak_meter import measured_peak_bytes
from test_step import CASES, _model, _plan

from monet import allocator


def main(case: str) -> None:
    assert allocator.available()
    model, make = _model(case), CASES[case][1]
    plan = _plan(case, "95%" if case == "residual" else "10GB").plan
    print(measured_peak_bytes(model, plan, make), plan.peak_bytes)


if __name__ == "__main__":
    main(sys.argv[1])
