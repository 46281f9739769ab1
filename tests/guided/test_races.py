"""The native side of the profile-guided arena under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import monet.native
from monet.native.compiling import compiler

HARNESS = Path(__file__).parents[1] / "support" / "guided_races.cpp"


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_threads_do_not_race(tmp_path: Path) -> None:
    cxx, binary = compiler(), tmp_path / "races"
    assert cxx is not None
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", f"-I{Path(monet.native.__file__).parent}"]
    built = subprocess.run([cxx, *flags, str(HARNESS), "-o", str(binary)], capture_output=True, text=True, check=False)
    if built.returncode != 0 and "tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    # Its shadow memory needs the address space as it is without randomisation, on kernels with much of that.
    fixed = [found, "-R"] if (found := shutil.which("setarch")) else []
    done = subprocess.run([*fixed, str(binary)], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr or "failed to set personality" in done.stderr:
        pytest.skip("ThreadSanitizer cannot run here")
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    assert done.stdout.startswith("0 wrong, 0 bytes")
