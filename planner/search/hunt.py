"""What the two searches share: from first plans to a solution, whatever is minimised under whatever limit.

    first plans  →  improve stretches of the best  →  solve the whole program  →  a solution

``fastest.py`` looks for seconds under a limit of bytes, ``smallest.py`` for bytes under a limit of seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.best import ROUNDING, BestPlan, Clock
from monet.planner.search.companion import has_room
from monet.planner.search.ground import Ground
from monet.planner.search.neighbourhoods import NODES
from monet.planner.search.search import Search
from monet.planner.search.solving import Solving
from monet.planner.solution import Proof, Solution
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Solve


@dataclass(slots=True)
class Hunt:
    """One hunt for a plan, until it ``is_over`` or there is no time left. Ctrl-C cancels its clock.

    ``bound``: no point of the program named by ``scope`` has a smaller value; ``known``: no plan has.
    ``enough``: as for ``Search``.
    ``status``: how it ended, as in ``Solution``. ``smallest``: the smallest budget known, where it was
    looked for, and its plan. ``built_s``: seconds until the program was there, ``size`` its columns
    and rows.
    """

    best: BestPlan
    solving: Solving
    clock: Clock
    solve: Solve
    enough: float = float("-inf")
    bound: float = 0.0
    known: float = 0.0
    scope: str = "none"
    status: str = "interrupted"
    smallest: tuple[int, Solution] | None = None
    built_s: float = 0.0
    size: tuple[int, int] = (0, 0)
    companion: bool = field(init=False)

    def __post_init__(self) -> None:
        self.companion = has_room(self.solving.solver, self.solving.cores)
        self.built_s = self.clock.elapsed_s()

    def take(self, found: Solution) -> None:
        """Offers what a search inside of this one found. Where Ctrl-C has ended that one, it is meant for both."""
        self.best.offer(found.runs)
        if found.status == "interrupted":
            self.clock.cancellation.asked = True

    def is_enough(self) -> bool:
        """Whether the best plan is as good as was asked for, or is proven not to get that good."""
        return self.best.runs is not None and (self.best.value <= self.enough or self.known > self.enough > 0)

    def is_close(self) -> bool:
        """Whether the best plan is within the gap of what is proven of every plan."""
        return self.best.is_within(self.solving.gap, self.known)

    def is_over(self) -> bool:
        """Whether nobody wants the hunt to go on: cancelled, good enough, or within the gap of a bound on every
        plan."""
        solved = self.status == "optimal" and self.scope == "full"
        return self.clock.cancelled or self.is_enough() or self.is_close() or solved

    def improve(self, program: Program, until_s: float, seed: int = 0, nodes: int = NODES) -> None:
        """Improves stretches of the best plan in ``program`` until the clock shows ``until_s``; ``seed`` and ``nodes``
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
        """Improves stretches until the clock shows ``first_s``, then solves the whole program until it shows
        ``until_s`` (None: the time limit); its bound and status are the hunt's. ``gap`` as for ``search``, ``turn_s``
        as for ``Search``."""
        self.scope, self.size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        search = self.search(program, until_s, gap)
        search.turn_s = turn_s
        search.improve(first_s)
        self.status = search.run()
        self.bound = max(self.bound, search.bound)
        if self.scope == "full":
            self.known = max(self.known, search.bound)
        return search

    def first_s(self, share: float, alone_share: float) -> float:
        """A share of the time limit for stretches; ``alone_share`` where no companion goes on with them."""
        return (share if self.companion else alone_share) * self.solving.time_limit_s

    def proof(self) -> Proof | None:
        """The better of the two bounds. That on every plan if it was asked for, of equals, or where the other says
        nothing about the best plan, which is no point of its program then."""
        other = self.bound if self.bound <= self.best.value * (1 + ROUNDING) else 0.0
        if self.known > 0 and (self.solving.prove or self.known >= other * (1 - ROUNDING)):
            return Proof(min(self.known, self.best.value), "full")
        return None if self.scope == "none" else Proof(max(0.0, min(self.bound, self.best.value)), self.scope)

    def solution(self, proof: Proof | None) -> Solution | None:
        """The best plan, ``proof`` of it, and how the hunt went; None where no plan was found."""
        known = self.best.both()
        if known is None:
            return None
        runs, cost = known
        status = "interrupted" if self.clock.cancelled else "good_enough" if self.is_enough() else self.status
        return Solution(
            runs,
            cost.objective_s,
            cost.peak_bytes,
            status,
            proof,
            self.built_s,
            self.clock.elapsed_s() - self.built_s,
            *self.size,
        )

    def search(self, program: Program, until_s: float | None = None, gap: float | None = None) -> Search:
        """A search of ``program`` for this hunt, until the clock shows ``until_s`` (None: the time limit). ``gap``: to
        the program's own bound, at which it ends; None is the one that was asked for."""
        ground = Ground(program, self.solve, self.best, self.solving.gap if gap is None else gap)
        clock = self.clock if until_s is None else replace(self.clock, time_limit_s=until_s)
        return Search(ground, clock, self.enough, self.bound, self.known, self.solving.gap, self.companion)


@contextmanager
def cancelled_by_ctrl_c(clock: Clock) -> Iterator[None]:
    """What Ctrl-C raises inside, between solves, cancels the search; in a solve, the solver's adapter sees to that."""
    try:
        yield
    except KeyboardInterrupt:
        clock.cancellation.asked = True


def hunt_for(best: BestPlan, solving: Solving, progress: Progress | None, *, enough: float = float("-inf")) -> Hunt:
    """A hunt whose time begins now.

    Raises:
        SolverError: the solver is missing.
    """
    clock = Clock(solving.time_limit_s, progress)
    return Hunt(best, solving, clock, clock.heeded(find_solver(solving.solver)), enough)
