"""HiGHS through highspy: start, time limit, progress, and a Ctrl-C that keeps the best point.

Python runs signal handlers only in the main thread and only between bytecodes, so a solve in C++
would hold Ctrl-C back until it ends. HiGHS therefore runs in a thread of its own (it releases the
interpreter) while the caller waits in short sleeps. Whatever the caller's thread raises meanwhile sets a
flag that HiGHS's interrupt callback reads.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import highspy
import numpy as np

from monet.errors import SolverError
from monet.planner.solvers.model import Answer, Limits, Model, Status, Tick
from monet.planner.solvers.rows import Floats

THREADS = 1
"""The search of the tree uses one; another core improves neighbourhoods meanwhile (``search/worker.py``)."""
SEED = 0
"""HiGHS's own default. Set here so that equal inputs give equal plans, whatever that default becomes."""
POLL_S = 0.05
"""Between two looks of the waiting thread: progress is told 20 times a second, and a Ctrl-C is heeded as soon."""
INFINITE = 1e29
"""HiGHS says 1e30 where there is no bound; a bound this large is none."""
INTERIOR_FROM = 10_000
"""Columns of a linear program from which on an interior point, brought to a vertex, is there sooner than simplex: on
30,000 columns in 5 s instead of 12."""
AGAIN_TOLERANCE = 1e-7
"""The least tolerance of a solve that is repeated after an error: with a smaller one it may fail in the same way."""


_INFEASIBLE = Answer("infeasible", None, float("inf"), float("inf"))


class _Watch:
    """Shared between the solving thread (callbacks) and the waiting one."""

    def __init__(self) -> None:
        self.stop = False
        self.x: Floats | None = None
        self.bound: float | None = None
        self.error: BaseException | None = None

    def end(self) -> None:
        self.stop = True

    def callback(self, kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        names = highspy.cb.HighsCallbackType
        if kind == names.kCallbackMipImprovingSolution:
            self.x = np.array(out.mip_solution)
        if kind in (names.kCallbackMipImprovingSolution, names.kCallbackMipInterrupt, names.kCallbackMipLogging):
            bound = float(out.mip_dual_bound)
            if np.isfinite(bound) and abs(bound) < INFINITE:
                self.bound = bound
        if into is not None and self.stop:
            into.user_interrupt = True


def solve_highs(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
    """Minimises ``model``; deterministic unless it stops at the time limit or is interrupted.

    Raises:
        SolverError: HiGHS ends without an answer for another reason than a limit or infeasibility.
    """
    if not len(model.arrays.cost):
        feasible = model.violation(np.zeros(0)) == 0.0
        return Answer("optimal", np.zeros(0), 0.0, 0.0) if feasible else _INFEASIBLE
    begun = time.monotonic()
    answer = _run(model, limits, tick, "choose")
    if answer is None:
        left = max(0.0, limits.time_s - (time.monotonic() - begun))
        tolerance = None if limits.tolerance is None else max(limits.tolerance, AGAIN_TOLERANCE)
        answer = _run(model, replace(limits, time_s=left, tolerance=tolerance), tick, "off")
    if answer is None:
        raise SolverError("HiGHS ended without an answer: Solve error, with presolve and without it")
    return answer


_Highs: Any = highspy.Highs  # typed in some versions and not in others


class _Quiet(_Highs):  # type: ignore[misc]
    """From version 1.16 on, HiGHS says its name on standard output as soon as callbacks are enabled, which its
    constructor does."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def _run(model: Model, limits: Limits, tick: Tick | None, presolve: str) -> Answer | None:
    """None where HiGHS ends with a solve error: to its check at the end, a point that uses up a row's tolerance may be
    infeasible (ERGO-Code/HiGHS#2808, about one in 300 programs with big-M rows). It then forgets its bound, too."""
    highs = _Quiet()
    options: dict[str, bool | int | float | str] = {
        "presolve": presolve,
        "threads": THREADS,
        "random_seed": SEED,
        "time_limit": max(float(limits.time_s), 0.0),
        "mip_rel_gap": float(limits.gap),
    }
    if limits.nodes is not None:
        options["mip_max_nodes"] = limits.nodes
    if limits.tolerance is not None:
        options["mip_feasibility_tolerance"] = limits.tolerance
    for name, value in options.items():
        highs.setOptionValue(name, value)
    linear = not model.arrays.integer.any()
    if linear and model.basis is None and len(model.arrays.cost) > INTERIOR_FROM:
        highs.setOptionValue("solver", "ipm")
    highs.passModel(highs_model(model))
    if linear and model.basis is not None:
        highs.setBasis(cast(highspy.HighsBasis, model.basis))
    if model.start is not None:
        start = highspy.HighsSolution()
        start.col_value = list(model.start)
        highs.setSolution(start)
    watch = _Watch()
    highs.setCallback(watch.callback, None)
    for kind in ("MipImprovingSolution", "MipInterrupt", "MipLogging", "SimplexInterrupt", "IpmInterrupt"):
        highs.startCallback(getattr(highspy.cb.HighsCallbackType, f"kCallback{kind}"))
    interrupted = _wait(highs, watch, tick)
    return _answer(highs, model, watch, interrupted)


def _wait(highs: Any, watch: _Watch, tick: Tick | None) -> bool:
    """Runs HiGHS in a thread; returns whether Ctrl-C has ended it. What ``tick`` raises is raised once HiGHS has
    stopped."""

    def work() -> None:
        try:
            highs.run()
        except BaseException as error:  # handed to the waiting thread, which raises it
            watch.error = error

    thread = threading.Thread(target=work, name="highs", daemon=True)
    raised: BaseException | None = None
    with Interrupts(watch.end) as interrupts:
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            if tick is None or watch.stop:
                continue
            try:
                watch.stop = watch.stop or bool(tick(watch.x, watch.bound))
            except BaseException as error:  # HiGHS must have stopped before it may leave this function
                raised = error
                watch.stop = True
    if interrupts.seen or isinstance(raised, KeyboardInterrupt):  # also where tick had enough at the same moment
        return True
    if raised is not None:
        raise raised
    if watch.error is not None:
        raise SolverError(f"HiGHS failed: {watch.error}") from watch.error
    return False


class Interrupts:
    """While HiGHS runs, Ctrl-C calls ``stop`` and raises nothing: an exception at the wrong moment would
    leave HiGHS running behind a program that goes on, and abort it at exit.

    Only the main thread may handle signals; in another one, Ctrl-C is the main thread's business.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.seen = False
        self._stop = stop
        self._before: Any = None
        self._handles = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupts:
        # A handler that the application installed (or SIG_IGN) stays in charge.
        self._handles = self._handles and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._handles:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: object) -> None:
        self.seen = True
        self._stop()


def highs_model(model: Model) -> Any:
    """``model`` as HiGHS takes it."""
    arrays = model.arrays
    lp = highspy.HighsLp()
    lp.num_col_ = len(arrays.cost)
    lp.num_row_ = len(arrays.lower)
    lp.col_cost_ = arrays.cost
    lp.col_lower_ = model.fixed_lower
    lp.col_upper_ = model.fixed_upper
    lp.row_lower_ = np.maximum(arrays.lower, -highspy.kHighsInf)
    lp.row_upper_ = np.minimum(arrays.upper, highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = arrays.row_start
    lp.a_matrix_.index_ = arrays.column_index
    lp.a_matrix_.value_ = arrays.value
    kinds = highspy.HighsVarType
    lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in arrays.integer]
    return lp


def _answer(highs: Any, model: Model, watch: _Watch, interrupted: bool) -> Answer | None:
    """Reads the end of a solve: HiGHS's status, its best point, its bound; None after a solve error."""
    kinds = highspy.HighsModelStatus
    ended = highs.getModelStatus()
    info = highs.getInfo()
    known = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if known else watch.x
    if x is not None and len(x) != len(model.arrays.cost):
        x = watch.x
    objective = float(model.arrays.cost @ x) if x is not None else float("inf")
    bound = float(info.mip_dual_bound)
    if not model.arrays.integer.any():
        # A linear program has no tree: its optimum is its bound, and short of that simplex has none to give.
        bound = objective if ended == kinds.kOptimal else float("-inf")
    elif not np.isfinite(bound) or abs(bound) > INFINITE:
        bound = watch.bound if watch.bound is not None else float("-inf")
    if interrupted:  # whatever it ended with meanwhile: a caller that solves one program after another must stop
        return Answer("interrupted", x, objective, min(bound, objective))
    status: Status
    if ended == kinds.kOptimal:
        status = "optimal"
    elif ended in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return _INFEASIBLE
    elif ended in (
        kinds.kTimeLimit,
        kinds.kIterationLimit,
        kinds.kSolutionLimit,
        kinds.kObjectiveTarget,
        kinds.kObjectiveBound,
    ):
        status = "time_limit"
    elif ended == kinds.kInterrupt:
        status = "stopped"
    elif ended == kinds.kSolveError:
        return None
    else:
        raise SolverError(f"HiGHS ended without an answer: {highs.modelStatusToString(ended)}")
    basis = highs.getBasis() if status == "optimal" and not model.arrays.integer.any() else None
    return Answer(status, x, objective, min(bound, objective), basis)
