"""What the two searches share: from first plans to a solution, whatever is minimised under whatever limit.

    first plans  →  improve stretches of the best  →  solve the whole program  →  a solution

``fastest.py`` looks for seconds under a limit of bytes, ``smallest.py`` for bytes under a limit of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.best import BestPlan, Clock, GoodEnough
from monet.planner.search.companion import has_room
from monet.planner.search.ground import Ground
from monet.planner.search.search import Search
from monet.planner.search.solving import Solving
from monet.planner.solution import Proof, Solution
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Solve


@dataclass(slots=True)
class Hunt:
    """One hunt for a plan. While it is entered, Ctrl-C and ``GoodEnough`` end it; Ctrl-C goes on up without a plan.

    ``bound``: no point of the program named by ``scope`` has a smaller value. ``enough``: as for ``Search``.
    ``status``: how it ended, as in ``Solution``. ``built_s``: seconds until the program was there, ``size`` its columns
    and rows.
    """

    best: BestPlan
    solving: Solving
    clock: Clock
    solve: Solve
    enough: float = float("-inf")
    bound: float = 0.0
    scope: str = "none"
    status: str = "interrupted"
    built_s: float = 0.0
    size: tuple[int, int] = (0, 0)
    companion: bool = field(init=False)

    def __post_init__(self) -> None:
        self.companion = has_room(self.solving.solver, self.solving.cores)
        self.built_s = self.clock.elapsed_s()

    def __enter__(self) -> Hunt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(raised, GoodEnough):
            self.status = "good_enough"
        elif isinstance(raised, KeyboardInterrupt) and self.best.runs is not None:
            self.status = "interrupted"
        else:
            return False
        return True

    def stop_if_enough(self) -> None:
        """Raises ``GoodEnough`` where the best plan is as good as was asked for."""
        if self.best.value <= self.enough:
            raise GoodEnough

    def improve(self, program: Program, until_share: float) -> None:
        """Improves stretches of the best plan in ``program`` until that share of the time limit."""
        self.search(program).improve(until_share * self.solving.time_limit_s)

    def run(self, program: Program, first_share: float, alone_share: float) -> Search:
        """Improves stretches until a share of the time limit (``alone_share`` where no companion goes on with that),
        then solves the whole program; its bound and status are the hunt's."""
        self.scope, self.size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        search = self.search(program)
        try:
            search.improve((first_share if self.companion else alone_share) * self.solving.time_limit_s)
            self.status = search.run()
        finally:
            self.bound = max(self.bound, search.bound)
        return search

    def solution(self, proof: Proof | None) -> Solution | None:
        """The best plan, ``proof`` of it, and how the hunt went; None where no plan was found."""
        if self.best.runs is None or self.best.cost is None:
            return None
        return Solution(
            self.best.runs,
            self.best.cost.objective_s,
            self.best.cost.peak_bytes,
            self.status,
            proof,
            self.built_s,
            self.clock.elapsed_s() - self.built_s,
            *self.size,
        )

    def search(self, program: Program) -> Search:
        """A search of ``program`` for this hunt."""
        ground = Ground(program, self.solve, self.best, self.solving.gap)
        return Search(ground, self.clock, self.enough, self.bound, self.companion)


def hunt_for(best: BestPlan, solving: Solving, progress: Progress | None, *, enough: float = float("-inf")) -> Hunt:
    """A hunt whose time begins now.

    Raises:
        SolverError: the solver is missing.
    """
    return Hunt(best, solving, Clock(solving.time_limit_s, progress), find_solver(solving.solver), enough)
