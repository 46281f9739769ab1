"""What the two searches share: from first plans to a solution, whatever is minimised under whatever limit.

    first plans  →  improve neighbourhoods of the best  →  solve the whole program  →  a solution

``fastest.py`` looks for seconds under a limit of bytes, ``smallest.py`` for bytes under a limit of seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.formulation import Formulation
from monet.planner.search.incumbent import ROUNDING, Deadline, Incumbent
from monet.planner.search.neighbourhoods import NODES
from monet.planner.search.search import Search
from monet.planner.search.solving import Solving
from monet.planner.search.worker import has_room
from monet.planner.solution import Proof, Solution
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Solve


@dataclass(slots=True)
class SearchState:
    """The state of a search for a plan, until it ``is_over`` or there is no time left. Ctrl-C cancels its deadline.

    ``program_bound``: no point of the program named by ``scope`` has a smaller value; ``full_bound``: no plan has.
    ``enough``: as for ``Search``.
    ``status``: how it ended, as in ``Solution``. ``smallest``: the smallest budget known, where it was
    looked for, and its plan. ``built_s``: seconds until the program was there, ``size`` its columns
    and rows.
    """

    incumbent: Incumbent
    solving: Solving
    deadline: Deadline
    solve: Solve
    enough: float = float("-inf")
    program_bound: float = 0.0
    full_bound: float = 0.0
    scope: str = "none"
    status: str = "interrupted"
    smallest: tuple[int, Solution] | None = None
    built_s: float = 0.0
    size: tuple[int, int] = (0, 0)
    worker: bool = field(init=False)

    def __post_init__(self) -> None:
        self.worker = has_room(self.solving.solver, self.solving.cores)
        self.built_s = self.deadline.elapsed_s()

    def take(self, found: Solution) -> None:
        """Offers what a search inside of this one found. Where Ctrl-C has ended that one, it is meant for both."""
        self.incumbent.offer(found.runs)
        if found.status == "interrupted":
            self.deadline.cancellation.asked = True

    def is_enough(self) -> bool:
        """Whether the best plan is as good as was asked for, or is proven not to get that good."""
        return self.incumbent.runs is not None and (
            self.incumbent.value <= self.enough or self.full_bound > self.enough > 0
        )

    def is_close(self) -> bool:
        """Whether the best plan is within the gap of what is proven of every plan."""
        return self.incumbent.is_within(self.solving.gap, self.full_bound)

    def is_over(self) -> bool:
        """Whether nobody wants the search to go on: cancelled, good enough, or within the gap of a bound on every
        plan."""
        solved = self.status == "optimal" and self.scope == "full"
        return self.deadline.cancelled or self.is_enough() or self.is_close() or solved

    def improve(self, program: Program, until_s: float, seed: int = 0, nodes: int = NODES) -> None:
        """Improves neighbourhoods of the best plan in ``program`` until ``until_s``; ``seed`` and ``nodes``
        as for ``Search``."""
        self.search(program).improve(until_s, seed, nodes)

    def run(
        self,
        program: Program,
        first_s: float,
        until_s: float | None = None,
        gap: float | None = None,
        turn_s: float = float("inf"),
    ) -> Search:
        """Improves neighbourhoods until ``first_s``, then solves the whole program until it shows
        ``until_s`` (None: the time limit); its bound and status are the state's. ``gap`` as for ``search``, ``turn_s``
        as for ``Search``."""
        self.scope, self.size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        search = self.search(program, until_s, gap)
        search.turn_s = turn_s
        search.improve(first_s)
        self.status = search.run()
        self.program_bound = max(self.program_bound, search.program_bound)
        if self.scope == "full":
            self.full_bound = max(self.full_bound, search.program_bound)
        return search

    def first_s(self, share: float, alone_share: float) -> float:
        """A share of the time limit for neighbourhoods; ``alone_share`` where no worker goes on with them."""
        return (share if self.worker else alone_share) * self.solving.time_limit_s

    def proof(self) -> Proof | None:
        """The better of the two bounds. That on every plan if it was asked for, of equals, or where the other says
        nothing about the best plan, which is no point of its program then."""
        other = self.program_bound if self.program_bound <= self.incumbent.value * (1 + ROUNDING) else 0.0
        if self.full_bound > 0 and (self.solving.prove or self.full_bound >= other * (1 - ROUNDING)):
            return Proof(min(self.full_bound, self.incumbent.value), "full")
        return (
            None if self.scope == "none" else Proof(max(0.0, min(self.program_bound, self.incumbent.value)), self.scope)
        )

    def solution(self, proof: Proof | None) -> Solution | None:
        """The best plan, ``proof`` of it, and how the search ended; None where no plan was found."""
        known = self.incumbent.both()
        if known is None:
            return None
        runs, cost = known
        status = "interrupted" if self.deadline.cancelled else "good_enough" if self.is_enough() else self.status
        return Solution(
            runs,
            cost.objective_s,
            cost.peak_bytes,
            status,
            proof,
            self.built_s,
            self.deadline.elapsed_s() - self.built_s,
            *self.size,
        )

    def search(self, program: Program, until_s: float | None = None, gap: float | None = None) -> Search:
        """A search of ``program`` for this state, until ``until_s`` (None: the time limit). ``gap``: to
        the program's own bound, at which it ends; None is the one that was asked for."""
        formulation = Formulation(program, self.solve, self.incumbent, self.solving.gap if gap is None else gap)
        deadline = self.deadline if until_s is None else replace(self.deadline, time_limit_s=until_s)
        return Search(
            formulation, deadline, self.enough, self.program_bound, self.full_bound, self.solving.gap, self.worker
        )


@contextmanager
def cancelled_by_ctrl_c(deadline: Deadline) -> Iterator[None]:
    """What Ctrl-C raises inside, between solves, cancels the search; in a solve, the solver's adapter sees to that."""
    try:
        yield
    except KeyboardInterrupt:
        deadline.cancellation.asked = True


def begun_state(
    incumbent: Incumbent, solving: Solving, progress: Progress | None, *, enough: float = float("-inf")
) -> SearchState:
    """A state whose time begins now.

    Raises:
        SolverError: the solver is missing.
    """
    deadline = Deadline(solving.time_limit_s, progress)
    return SearchState(incumbent, solving, deadline, deadline.heeded(find_solver(solving.solver)), enough)
