"""The peak that a plan promises is the one that the allocator measures, in bytes, however the model is trained."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from repository import ROOT
from usage_cases import USAGES

QUICK = {
    ("module", "autocast"),
    ("accumulate", "several outputs"),
}
# A model that returns its loss is also measured from that loss alone.
WITH_LOSS = [name for name in USAGES if name.startswith("gpt2") or name == "autocast inside"]


def _cases() -> list[Any]:
    cases = [(kind, name) for kind in ("module", "accumulate", "trainer") for name in USAGES]
    cases += [("loss", name) for name in WITH_LOSS]
    return [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in cases]


@pytest.mark.parametrize(("kind", "name"), _cases())
@pytest.mark.sampled(2)
def test_measured_peak_is_the_promised_one_in_bytes(kind: str, name: str) -> None:
    """In a fresh process, so that nothing else is counted; each of three steps, the first one included."""
    script = ROOT / "tests" / "support" / "peak_of_usage.py"
    done = subprocess.run([sys.executable, str(script), name, kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *measured, promised = map(int, done.stdout.split())
    assert measured == [promised] * 3
