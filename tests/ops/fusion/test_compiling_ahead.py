"""All kernels of a step before it is measured, by several processes."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from monet.errors import ExecutionError
from monet.ops.fusion import compiling, compiling_ahead
from monet.ops.fusion.compiling_ahead import compile_all
from monet.ops.fusion.fused import Fused, Slot, Step

aten = torch.ops.aten
CPU = torch.device("cpu")


def _wanted(count: int) -> list[compiling_ahead.Wanted]:
    program = Fused(1, (Step(aten.exp.default, (Slot(0),), ()), Step(aten.add.Scalar, (Slot(1), 1.0), ())), (2,))
    return [(program, ((torch.float32, (64 + k,), (1,), CPU),)) for k in range(count)]


def test_what_another_process_is_sent_is_the_same() -> None:
    wanted = _wanted(2)
    assert pickle.loads(compiling_ahead._pickled(wanted)) == wanted


def test_each_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[compiling_ahead.Wanted] = []
    monkeypatch.setattr(compiling_ahead, "kernel_of", lambda *one: called.append(one))
    wanted = _wanted(3)
    monkeypatch.setattr(compiling_ahead, "is_known", lambda *one: one == wanted[1])
    compile_all([*wanted, *wanted])
    assert called == [wanted[0], wanted[2]]


def test_what_the_compiler_fails_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: Fused, inputs: object) -> None:
        raise RuntimeError("no such lowering")

    monkeypatch.setattr(compiling, "_compile", fail)
    with pytest.raises(ExecutionError, match="no such lowering"):
        compile_all(_wanted(6))


def test_a_helper_that_fails_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[compiling_ahead.Wanted] = []
    monkeypatch.setattr(compiling_ahead, "kernel_of", lambda *one: called.append(one))
    monkeypatch.setattr(compiling_ahead, "COLD_S", -1.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2})
    for command in ("raise SystemExit(1)", "import sys; sys.stdin.close()"):
        monkeypatch.setattr(compiling_ahead, "_COMMAND", command)
        compile_all(_wanted(9))
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    compile_all(_wanted(9))
    assert len(called) == 27


@pytest.mark.slow
def test_another_process_fills_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels for as many threads as this process has, which then compiles nothing."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    wanted = _wanted(2)
    done = subprocess.run(
        [sys.executable, "-c", compiling_ahead._COMMAND, str(torch.get_num_threads()), *sys.path],
        input=compiling_ahead._pickled(wanted),
        check=True,
        timeout=300,
        capture_output=True,
    )
    assert not done.stdout
    there = set(tmp_path.rglob("*.so"))
    assert len(there) >= 2 and compiling_ahead._marker().exists()
    before = counters["inductor"]["fxgraph_cache_hit"]
    for one in wanted:
        compiling.kernel_of(*one)
    assert counters["inductor"]["fxgraph_cache_hit"] == before + 2
    assert set(tmp_path.rglob("*.so")) == there


def test_a_process_makes_the_compiler_ready_where_it_never_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(compiling_ahead, "import_compiler", lambda: None)
    monkeypatch.setattr(compiling_ahead, "_COMMAND", "import sys; sys.stdin.read()")
    monkeypatch.setattr(compiling_ahead, "_let_alone", [])  # other tests' may not have ended
    with compiling_ahead.compiler_made_ready():
        (process,) = compiling_ahead._begun
        assert process.poll() is None
        with compiling_ahead.compiler_made_ready():
            assert compiling_ahead._begun == [process]
    assert not compiling_ahead._begun
    assert process.wait(timeout=60) == 0, "it is not killed amid the headers, and ends where it is sent nothing"
    with compiling_ahead.compiler_made_ready():
        (process,) = compiling_ahead._begun
        compiling_ahead._marker().touch()
    assert process.returncode == -signal.SIGTERM
    with compiling_ahead.compiler_made_ready():
        assert not compiling_ahead._begun


def test_the_process_that_is_there_is_sent_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received = tmp_path / "received"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(compiling_ahead, "import_compiler", lambda: None)
    command = f"import sys, pathlib; pathlib.Path({str(received)!r}).write_bytes(sys.stdin.buffer.read())"
    monkeypatch.setattr(compiling_ahead, "_COMMAND", command)
    wanted = _wanted(3)

    def slow(*one: object) -> None:
        while not received.exists() or not received.stat().st_size:
            time.sleep(0.01)

    monkeypatch.setattr(compiling_ahead, "kernel_of", slow)
    monkeypatch.setattr(compiling_ahead, "is_known", lambda *one: False)
    with compiling_ahead.compiler_made_ready():
        compile_all(wanted)
    assert pickle.loads(received.read_bytes()) == wanted[:0:-1]


def test_nothing_runs_beside_what_is_measured_and_no_two_get_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(compiling_ahead, "import_compiler", lambda: None)
    monkeypatch.setattr(compiling_ahead, "_let_alone", [])
    monkeypatch.setattr(compiling_ahead, "_COMMAND", "import sys, time; sys.stdin.read(); time.sleep(1)")
    with compiling_ahead.compiler_made_ready():
        (process,) = compiling_ahead._begun
        compile_all([])
        assert process.returncode == 0
    with compiling_ahead.compiler_made_ready():
        (process,) = compiling_ahead._begun
    assert compiling_ahead._let_alone == [process] and process.poll() is None
    with compiling_ahead.compiler_made_ready():
        assert not compiling_ahead._begun, "one is still at it"
    process.wait()
    with compiling_ahead.compiler_made_ready():
        assert len(compiling_ahead._begun) == 1
    for process in compiling_ahead._let_alone:
        process.wait()
