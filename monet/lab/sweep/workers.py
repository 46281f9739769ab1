"""Processes that plan cells, several at a time.

Not ``concurrent.futures``: there a process that the system kills, for lack of memory say, takes the whole pool and
every waiting cell with it. Here it costs its own cell, and another process takes its place.

Each process prepares the step once and then plans one cell after the other. The first one is started alone, because
it may have to measure operators; the others find the measurements in the cache. Ctrl-C is the parent's: it ends its
children. When the parent itself is killed, a thread in each child notices and ends the child.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

from monet import errors
from monet.base.silence import silence
from monet.errors import ConfigError, MonetError
from monet.lab.sweep.cells import Cell, Outcome, Step
from monet.lab.sweep.source import Options, Source
from monet.planner.cores import usable_cores

FAILED = 1

END_S = 5.0
"""Seconds that a child gets to end before it is killed."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Preparing failed; ``error`` is the exception's class."""

    error: str
    message: str

    def exception(self) -> MonetError:
        if self.error == ConfigError.__name__:
            return ConfigError(self.message)
        known = hasattr(errors, self.error)
        return MonetError(self.message if known else f"the step cannot be prepared: {self.error}: {self.message}")


class _Worker:
    """One child process and what it is doing: it prepares, is ``ready`` for a cell, or plans ``cell``."""

    def __init__(self, source: Source, options: Options, cores: int, progress: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, end = context.Pipe()
        self.process = context.Process(target=_serve, args=(end, source, options, cores, progress), daemon=True)
        self.cell: Cell | None = None
        self.ready = False
        with _interrupts_held():
            self.process.start()
        end.close()

    def give(self, cell: Cell, plan_path: Path) -> None:
        self.cell = cell
        with suppress(OSError):  # it died while it waited: `take` will tell
            self.connection.send((cell, plan_path))

    def take(self) -> Any:
        """What it sends next; None when it died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def hang_up(self) -> None:
        """Ends it: at once if it is at work, else by itself, for lack of more to do."""
        if self.cell is not None or not self.ready:
            self.process.terminate()
        self.connection.close()

    def cause_of_death(self) -> str:
        self.process.join(END_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            lack = ", most likely for lack of memory" if code == -signal.SIGKILL else ""
            return f"its process was ended by {signal.Signals(-code).name}{lack}"
        return f"its process ended with status {code}"


class Workers:
    """A context: up to ``jobs`` processes that plan cells of one source."""

    def __init__(self, source: Source, options: Options, jobs: int, progress: bool) -> None:
        self._ask = (source, options)
        self._jobs = jobs
        self._progress = progress
        self._workers: list[_Worker] = []
        self._step: Step | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.process.join(END_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def prepare(self) -> Step:
        """Starts the first process and waits until it knows the step. Raises ``MonetError``."""
        worker = self._start(self._progress)
        answer = worker.take()
        if answer is None:
            raise MonetError(f"the step cannot be prepared: {worker.cause_of_death()}")
        self._step = self._checked(answer)
        worker.ready = True
        return self._step

    def plan(self, cells: Mapping[Cell, Path]) -> Iterator[tuple[Cell, Outcome]]:
        """Cells and their outcomes, as they are done; the values are where a model's plan files go.

        Raises ``MonetError`` if no process can be prepared.
        """
        waiting = deque(cells)
        idle = list(self._workers)
        while waiting or any(worker.cell for worker in self._workers):
            while idle and waiting:
                cell = waiting.popleft()
                idle.pop().give(cell, cells[cell])
            # Those that still prepare count: each will take a cell.
            preparing = sum(not worker.ready for worker in self._workers)
            for _ in range(min(self._jobs - len(self._workers), len(waiting) - preparing)):
                self._start(False)
            for worker in self._wait():
                answer = worker.take()
                if answer is None:
                    self._workers.remove(worker)
                    worker.connection.close()
                    if worker.cell is not None:
                        assert self._step is not None
                        yield worker.cell, Outcome("error", self._step.problem, worker.cause_of_death())
                    elif worker in idle:
                        idle.remove(worker)
                    elif self._workers:
                        self._jobs -= 1  # there is no room for one more
                    else:
                        raise MonetError(f"another process cannot prepare the step: {worker.cause_of_death()}")
                elif not worker.ready:
                    self._checked(answer)
                    worker.ready = True
                    idle.append(worker)
                else:
                    done, worker.cell = worker.cell, None
                    assert done is not None
                    idle.append(worker)
                    yield done, answer

    def _start(self, progress: bool) -> _Worker:
        worker = _Worker(*self._ask, max(1, usable_cores() // self._jobs), progress)
        self._workers.append(worker)
        return worker

    def _wait(self) -> list[_Worker]:
        busy = {id(worker.connection): worker for worker in self._workers}
        ready = connection.wait([worker.connection for worker in self._workers])
        return [busy[id(end)] for end in ready]

    def _checked(self, answer: Step | _Failure) -> Step:
        if isinstance(answer, _Failure):
            raise answer.exception()
        if self._step is not None and answer.problem != self._step.problem:
            raise MonetError(
                "two processes prepared the same step and got different costs; is the folder of measurements "
                "(MONET_CACHE) writable? --jobs 1 needs no second process"
            )
        return answer


def _serve(end: connection.Connection, source: Source, options: Options, cores: int, progress: bool) -> None:
    """Runs in the child: prepares, says what the step is, then answers cells until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An orderly end: what tqdm and others have open is given back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What a solve logs would run into the parent's progress line.
    logging.getLogger("monet").addHandler(logging.NullHandler())
    logging.getLogger("monet").propagate = False
    with silence(not progress):
        _answer(end, source, options, cores, progress)


def _answer(end: connection.Connection, source: Source, options: Options, cores: int, progress: bool) -> None:
    from monet.lab.sweep.cell_planners import open_planner, plan_cell

    try:
        planner = open_planner(source, options, progress, cores)
    except Exception as error:
        end.send(_Failure(type(error).__name__, str(error)))
        return
    end.send(planner.step)
    while True:
        try:
            cell, plan_path = end.recv()
        except EOFError:
            return
        end.send(plan_cell(planner, cell, plan_path))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C goes to every process of the terminal. A child that starts in here never sees it, not even while
    Python starts; for this process it is only put off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
