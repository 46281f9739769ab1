"""A second core's work: neighbourhoods of the best plan are improved while the whole program is solved.

HiGHS searches a tree on one core. What it is weak at, finding good plans under tight budgets, is what
large-neighbourhood search is good at, so both run at once and the solve of the whole ends as soon as the best
plan of either is within the gap. The worker begins only ``AFTER_S`` after the search did, since which plan is
found first depends on the clock from then on: equal inputs give equal plans where the whole takes less.
"""

from __future__ import annotations

import threading
from types import TracebackType

from monet.planner.cores import usable_cores
from monet.planner.search.formulation import Formulation
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.solvers.model import Limits
from monet.planner.solvers.rows import Floats

AFTER_S = 5.0
MOST_NODES = 1000
RETRY_S = 0.2
"""Until a first plan is known, and one that is a point of the program."""


def has_room(solver: str, cores: int | None) -> bool:
    """Whether a worker has a core to run on, of ``cores`` (None: of all usable ones).

    Solvers that CVXPY calls use every core by themselves, and cannot be stopped from another thread.
    """
    return solver.upper() == "HIGHS" and (usable_cores() if cores is None else cores) > 1


class Worker:
    """While entered, improves the best plan of ``formulation`` in a thread; ``wanted``: otherwise does nothing.

    ``elapsed_s``: since the search began.

    Leaving waits until the thread has stopped, and raises what it failed with.
    """

    def __init__(self, formulation: Formulation, wanted: bool, elapsed_s: float = 0.0) -> None:
        self._formulation = formulation
        self._after_s = max(0.0, AFTER_S - elapsed_s)
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._value = float("inf")
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True) if wanted else None

    def __enter__(self) -> Worker:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and raised is None:
            raise self._error

    def _run(self) -> None:
        try:
            if not self._stopping.wait(self._after_s):
                self._improve()
        except BaseException as error:  # handed to the caller's thread, which raises it
            self._error = error

    def _improve(self) -> None:
        """Again and again with other neighbourhoods and longer rounds: each ends where it no longer helps, or where
        another plan is better, to begin again from that."""
        formulation = self._formulation
        model = formulation.model()
        nodes = NODES
        for seed in formulation.seeds:
            while (begun := formulation.around(model)) is None:
                if self._stopping.wait(RETRY_S):
                    return
            self._value = formulation.incumbent.value
            limits = Limits(float("inf"), formulation.gap, nodes)
            improve(
                formulation.program,
                begun,
                formulation.solve,
                limits,
                self._found,
                self._is_over,
                seed,
                formulation.cut,
                self._ends,
            )
            if self._stopping.is_set():
                return
            if not self._ends():
                nodes = min(MOST_NODES, nodes * 2)

    def _found(self, x: Floats) -> bool:
        fits = self._formulation.offer(x)
        self._value = self._formulation.incumbent.value
        return fits

    def _ends(self) -> bool:
        """Whether these rounds end: nobody wants more, or the solve of the whole has a better plan."""
        return self._stopping.is_set() or self._formulation.incumbent.value < self._value

    def _is_over(self, x: Floats | None, bound: float | None) -> bool:
        return self._ends()
