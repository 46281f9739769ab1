"""HiGHS in a process of its own, which can be ended.

HiGHS's presolve of an integer program looks neither at its time limit nor at its interrupt callback: on a program of
400,000 nonzeros it goes on for 20 s, and a thread that is in it cannot be stopped. A process can. It is a new Python
(no fork: other threads hold locks; no ``multiprocessing``: that would import the user's main module again), is kept
for the next solve, and ends with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Literal

from monet.errors import SolverError
from monet.planner.solvers.highs import POLL_S, Interrupts, solve_highs
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.rows import Floats

APART_FROM = 10_000
"""Nonzeros of an integer program from which on it is solved in another process. On 40 convolutional blocks, presolve
takes hundredths of a second with 10,000 and more than 10 s with 45,000; starting a process takes 0.5 s, once."""
GRACE_S = 0.5
"""How long HiGHS has, after its limit or a request to stop, to end by itself and give its last point and bound."""
NUMBER_BYTES = 8
IDLE_S = 60.0
"""How long a process waits for another solve: a training that was planned needs none any more."""

_COMMAND = (
    "import sys; sys.path[:] = sys.argv[3:]; from monet.planner.solvers.highs_process import serve; "
    "serve(int(sys.argv[1]), int(sys.argv[2]))"
)


@dataclass(frozen=True, slots=True)
class _Solve:
    """``number``: by which a request to stop names it, which may come when it has ended."""

    number: int
    model: Model
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Progress:
    """``x``: None where it is the point that was sent before."""

    x: Floats | None
    bound: float | None


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


def solve(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
    """As ``solve_highs``; a large integer program in another process, which ends ``GRACE_S`` after its time limit or
    after it is told to stop, with the best point and bound that it has sent by then."""
    large = len(model.arrays.value) >= APART_FROM and bool(model.arrays.integer.any())
    for first in (True, False):
        process = _take() if large else None
        if process is None:
            return solve_highs(model, limits, tick)
        wait = _Wait(process, model, limits, tick)
        try:
            answer = wait.answer()
        except (EOFError, ConnectionError):
            process.end()
            if wait.x is not None:
                return wait.known("time_limit")
            if first and not wait.told:  # it was idle for too long, and ended while it was taken
                continue
            break
        except BaseException:
            process.end()
            raise
        _give_back(process)
        return answer
    raise SolverError("the process in which HiGHS ran has died (out of memory?)")


@dataclass(slots=True)
class _Wait:
    """The side that waits. ``x``, ``bound``: the last that were sent; ``told``: anything was. ``enough``: the tick
    asked for the end."""

    process: _Process
    model: Model
    limits: Limits
    tick: Tick | None
    x: Floats | None = None
    bound: float | None = None
    raised: BaseException | None = None
    interrupted: bool = False
    enough: bool = False
    told: bool = False
    stop_by: float = field(init=False)

    def answer(self) -> Answer:
        self.process.begin(replace(self.model, basis=None), self.limits)
        self.stop_by = time.monotonic() + self.limits.time_s + GRACE_S
        with Interrupts(self._interrupt):
            answer = self._received()
        if self.interrupted or isinstance(self.raised, KeyboardInterrupt):
            known = answer if answer is not None and answer.x is not None else self.known("interrupted")
            return replace(known, status="interrupted")
        if self.raised is not None:
            raise self.raised
        return answer if answer is not None else self.known("stopped" if self.enough else "time_limit")

    def _received(self) -> Answer | None:
        """What the process answers; None, and it is ended, where it does not do so in time."""
        while time.monotonic() < self.stop_by:
            if not self.process.end_of_pipe.poll(POLL_S):
                self._tell()
                continue
            message = self.process.end_of_pipe.recv()
            self.told = True
            if isinstance(message, Answer):
                return message
            if isinstance(message, _Failure):
                raise SolverError(message.message)
            self.x = self.x if message.x is None else message.x
            self.bound = self.bound if message.bound is None else message.bound
            self._tell()
        self.process.end()
        return None

    def _tell(self) -> None:
        if self.tick is None or self.raised is not None or self.interrupted or self.enough:
            return
        try:
            self.enough = bool(self.tick(self.x, self.bound))
            if self.enough:
                self._stop()
        except BaseException as error:  # raised again once the process has stopped
            self.raised = error
            self._stop()

    def _interrupt(self) -> None:
        self.interrupted = True
        self._stop()

    def _stop(self) -> None:
        self.process.stop()
        self.stop_by = min(self.stop_by, time.monotonic() + GRACE_S)

    def known(self, status: Literal["interrupted", "stopped", "time_limit"]) -> Answer:
        objective = float("inf") if self.x is None else float(self.model.arrays.cost @ self.x)
        bound = float("-inf") if self.bound is None else self.bound
        return Answer(status, self.x, objective, min(bound, objective))


class _Process:
    """The parent's side of one process. ``end_of_pipe``: solves and answers; another pipe asks to stop, and its end is
    what tells the process that its parent has ended."""

    def __init__(self) -> None:
        self.end_of_pipe, other = connection.Pipe()
        self._count = 0
        reads, self._stops = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(other.fileno()), str(reads), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(), reads),
                start_new_session=True,  # Ctrl-C at a terminal is for the parent alone
            )
        except BaseException:
            os.close(self._stops)
            self.end_of_pipe.close()
            raise
        finally:
            other.close()
            os.close(reads)

    def begin(self, model: Model, limits: Limits) -> None:
        self._count += 1
        self.end_of_pipe.send(_Solve(self._count, model, limits))

    def stop(self) -> None:
        """Asks for the end of the solve that runs."""
        if self.end_of_pipe.closed:
            return
        with contextlib.suppress(OSError):
            os.write(self._stops, self._count.to_bytes(NUMBER_BYTES))

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Closes this side, after which the process ends by itself."""
        if not self.end_of_pipe.closed:
            self.end_of_pipe.close()
            os.close(self._stops)

    @property
    def lives(self) -> bool:
        return not self.end_of_pipe.closed and self._process.poll() is None


_idle: list[_Process] = []
_lock = threading.Lock()


def _take() -> _Process | None:
    """A process that waits for a solve; None where none can be started, as in a program that Python is embedded in."""
    with _lock:
        while _idle:
            process = _idle.pop()
            if process.lives:
                return process
            process.end()
    try:
        is_python = sys.executable and not getattr(sys, "frozen", False)
        return _Process() if is_python else None
    except OSError:
        return None


def _give_back(process: _Process) -> None:
    if not process.lives:
        return
    with _lock:
        _idle.append(process)


def _end_all() -> None:
    with _lock:
        while _idle:
            _idle.pop().end()


def _forget_all() -> None:
    """In a fork: the processes are its parent's."""
    global _lock
    _lock = threading.Lock()
    while _idle:
        _idle.pop().forget()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)


class _Stops:
    """In the process: requests to stop, and the end of the parent, amid a solve too. A fork of the parent keeps the
    pipe open, so the parent's number is looked at besides."""

    def __init__(self, pipe: int) -> None:
        self.number = 0
        self.idle_since: float | None = time.monotonic()
        self._pipe = pipe
        self._parent = os.getppid()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            ready = connection.wait([self._pipe], 1.0)
            if os.getppid() != self._parent:
                os._exit(1)
            idle_since = self.idle_since
            if idle_since is not None and time.monotonic() - idle_since > IDLE_S:
                os._exit(0)
            if ready:
                number = os.read(self._pipe, NUMBER_BYTES)
                if not number:
                    os._exit(0)
                self.number = int.from_bytes(number)


def serve(pipe: int, stops: int) -> None:
    """In the process: solves what it is sent, until its parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, asked_to_stop = connection.Connection(pipe), _Stops(stops)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            asked = parent.recv()
            asked_to_stop.idle_since = None
            parent.send(_solved(asked, parent, asked_to_stop))
            asked_to_stop.idle_since = time.monotonic()


def _solved(asked: _Solve, parent: connection.Connection, stops: _Stops) -> Answer | _Failure:
    sent: _Progress | None = None

    def tick(x: Floats | None, bound: float | None) -> bool:
        nonlocal sent
        if sent is None or x is not sent.x or bound != sent.bound:
            parent.send(_Progress(None if sent is not None and x is sent.x else x, bound))
            sent = _Progress(x, bound)
        return stops.number == asked.number

    try:
        return solve_highs(asked.model, asked.limits, tick)
    except SolverError as error:
        return _Failure(str(error))
