"""Large programs are solved in a process that can be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from slow_cases import slow_but
from test_solvers import knapsack

from monet.errors import SolverError
from monet.planner.solvers import highs_process
from monet.planner.solvers.highs import solve_highs
from monet.planner.solvers.highs_process import GRACE_S, solve
from monet.planner.solvers.model import Answer, Limits

LONG_S = 600.0


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    highs_process._end_all()
    monkeypatch.setattr(highs_process, "APART_FROM", 1)
    yield
    highs_process._end_all()


def pid() -> int:
    (process,) = highs_process._idle
    return process._process.pid


def ended(number: int, within_s: float = 10.0) -> bool:
    """Whether there is no such process, or nobody has asked how it ended yet."""
    for _ in range(int(10 * within_s)):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_answers_are_those_of_this_process() -> None:
    for seed in range(3):
        model = knapsack(12, seed)
        here, there = (which(model, Limits(20.0, 0.0)) for which in (solve_highs, solve))
        assert (there.status, there.objective, there.bound) == (here.status, here.objective, here.bound)
        assert there.x is not None and here.x is not None and np.array_equal(there.x, here.x)
    pid()  # one process has solved them all


def test_every_better_point_is_reported() -> None:
    seen: list[float] = []
    model = knapsack(60, 0)

    def tick(x: object, bound: float | None) -> None:
        if isinstance(x, np.ndarray):
            seen.append(float(model.arrays.cost @ x))

    answer = solve(model, Limits(20.0, 0.0), tick)
    assert answer.status == "optimal"
    assert seen and seen == sorted(seen, reverse=True) and seen[-1] >= answer.objective


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.parametrize("way", ["limit", "tick", "error", "ctrl-c"])
@pytest.mark.sampled(2)
def test_a_process_that_does_not_react_is_ended(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HiGHS does in presolve: neither a limit nor a request to stop is heeded."""
    solve(knapsack(5, 0), Limits(20.0, 0.0))
    number = pid()
    os.kill(number, signal.SIGSTOP)
    ticks = 0

    def tick(x: object, bound: float | None) -> bool:
        nonlocal ticks
        ticks += 1
        if ticks == 3 and way == "error":
            raise ValueError("from the caller")
        if ticks == 3 and way == "ctrl-c":
            signal.raise_signal(signal.SIGINT)
        return ticks >= 3 and way == "tick"

    begun = time.monotonic()
    answer: Answer | ValueError
    try:
        answer = solve(knapsack(12, 0), Limits(0.5 if way == "limit" else LONG_S, 0.0), tick)
    except ValueError as error:
        answer = error
    assert GRACE_S <= time.monotonic() - begun < LONG_S / 10
    assert ended(number)
    if isinstance(answer, Answer):
        statuses = {"limit": "time_limit", "tick": "stopped", "ctrl-c": "interrupted"}
        assert (answer.status, answer.x) == (statuses[way], None)
    else:
        assert way == "error"
    assert solve(knapsack(12, 0), Limits(20.0, 0.0)).status == "optimal"  # by another one


def test_a_request_to_stop_that_comes_late_is_for_nobody_else() -> None:
    solve(knapsack(5, 0), Limits(20.0, 0.0))
    (process,) = highs_process._idle
    number = pid()
    process.stop()
    assert not ended(number, within_s=0.5)
    assert solve(knapsack(40, 1), Limits(20.0, 0.0)).status == "optimal"
    assert pid() == number


def test_a_process_that_dies_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solve(knapsack(5, 0), Limits(20.0, 0.0))
    number = pid()
    os.kill(number, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (number, signal.SIGKILL)).start()
    assert solve(knapsack(5, 0), Limits(20.0, 0.0)).status == "optimal"  # by another one
    monkeypatch.setattr(highs_process, "_COMMAND", "import sys; sys.exit(1)")
    highs_process._end_all()
    with pytest.raises(SolverError, match="has died"):
        solve(knapsack(5, 0), Limits(20.0, 0.0))
    monkeypatch.undo()
    assert solve(knapsack(5, 0), Limits(20.0, 0.0)).status == "optimal"


def test_an_idle_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    command = highs_process._COMMAND.replace("; serve(int", "; h.IDLE_S = 0.1; serve(int").replace(
        "from monet", "import monet.planner.solvers.highs_process as h; from monet"
    )
    monkeypatch.setattr(highs_process, "_COMMAND", command)
    assert solve(knapsack(5, 0), Limits(20.0, 0.0)).status == "optimal"
    assert ended(pid())
    assert solve(knapsack(5, 0), Limits(20.0, 0.0)).status == "optimal"


def test_one_that_died_while_idle_is_replaced() -> None:
    solve(knapsack(5, 0), Limits(20.0, 0.0))
    number = pid()
    os.kill(number, signal.SIGKILL)
    assert ended(number)
    assert solve(knapsack(5, 0), Limits(20.0, 0.0)).status == "optimal"


def test_two_threads_have_one_each() -> None:
    answers = []
    threads = [
        threading.Thread(target=lambda seed: answers.append(solve(knapsack(30, seed), Limits(20.0, 0.0))), args=(seed,))
        for seed in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == ["optimal", "optimal"]


@pytest.mark.parametrize("how", slow_but(["killed"], ["killed", "forked", "at its end"]))
def test_it_ends_with_its_parent(how: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from monet.planner.solvers import highs_process\n"
        "from monet.planner.solvers.model import Limits\n"
        "from test_solvers import knapsack\n"
        "highs_process.APART_FROM = 1\n"
        "highs_process.solve(knapsack(5, 0), Limits(20.0, 0.0))\n"
        "print(highs_process._idle[0]._process.pid, flush=True)\n"
        "if sys.argv[1] == 'forked' and os.fork() == 0:\n"
        "    import time\n"
        "    time.sleep(20)\n"
        "    os._exit(0)\n"
        "if sys.argv[1] != 'at its end':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    paths = os.pathsep.join(sys.path)
    begun = subprocess.Popen(
        [sys.executable, "-c", code, how], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
    )
    assert begun.stdout is not None
    number = int(begun.stdout.readline())
    begun.wait()
    assert ended(number)
    begun.stdout.close()
