"""The state of a search, which strategies better in turn (``policy.py``): from a first plan to a solution.

``fastest.py`` looks for seconds under a limit of bytes, ``smallest.py`` for bytes under a limit of seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from monet.planner.program.index import Index, index_of
from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.checkpoints import CheckpointSearch
from monet.planner.search.formulation import Formulation
from monet.planner.search.incumbent import ROUNDING, Cancellation, Deadline, Incumbent
from monet.planner.search.neighbourhoods import NODES
from monet.planner.search.scope import Scope, scope_of
from monet.planner.search.search import Search
from monet.planner.search.solving import Solving
from monet.planner.search.worker import has_room
from monet.planner.solution import Proof, Runs, Solution
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Solve


class Strategy(Protocol):
    """One way to better plans, or to a better bound. What it finds is the state's at once, so that it can be stopped at
    any time; where it does not apply, it does nothing. Its fields are shares of the time limit, which ``policy.py``
    gives it."""

    def run(self, state: SearchState) -> None: ...


Policy = Sequence[Strategy]
PolicyOf = Callable[["SearchState"], Policy]
"""Which strategies a search follows: by the size of its problem."""


@dataclass(slots=True)
class SearchState:
    """A search for a plan, until it ``is_over`` or there is no time left. Ctrl-C cancels its deadline.

    ``limit``: bytes that a plan may hold where seconds are minimised, seconds that it may take where bytes are.
    ``program_bound``: no point of the program named by ``scope`` has a smaller value; ``full_bound``: no plan has.
    ``enough``: as for ``Search``. ``started``: whether it began with a plan of the caller's.
    ``status``: how it ended, as in ``Solution``. ``smallest``: the smallest budget known, where it was
    looked for, and its plan. ``built_s``: seconds until the program was there, ``size`` its columns and rows.
    ``checkpoints``: the relaxation, once it was solved; ``planned``: the search of an exact program, whose worker can
    go on beside a proof. ``unfilled``: a plan of ``Filling``, and what it was before.
    """

    incumbent: Incumbent
    limit: float
    solving: Solving
    deadline: Deadline
    solve: Solve
    enough: float = float("-inf")
    started: bool = False
    program_bound: float = 0.0
    full_bound: float = 0.0
    scope: str = "none"
    status: str = "interrupted"
    smallest: tuple[int, Solution] | None = None
    built_s: float = 0.0
    size: tuple[int, int] = (0, 0)
    checkpoints: CheckpointSearch | None = None
    planned: Search | None = None
    unfilled: tuple[Runs, Runs] | None = None
    worker: bool = field(init=False)
    _index: Index | None = None
    _windows: Scope | None = None

    def __post_init__(self) -> None:
        self.worker = has_room(self.solving.solver, self.solving.cores)

    @property
    def index(self) -> Index:
        """Of the problem."""
        if self._index is None:
            self._index = index_of(self.incumbent.problem)
        return self._index

    @property
    def windows(self) -> Scope:
        """Of the program with windows, or on a small network the full one."""
        if self._windows is None:
            self._windows = scope_of(self.index, self.solving.window)
        return self._windows

    @property
    def budget_bytes(self) -> int:
        """Where seconds are minimised."""
        return int(self.limit)

    @property
    def limit_s(self) -> float:
        return self.solving.time_limit_s

    def until_s(self, share: float) -> float:
        """When a share of the time limit will have passed from now on, but for that limit."""
        return min(self.limit_s, self.deadline.elapsed_s() + share * self.limit_s)

    def is_enough(self) -> bool:
        """Whether the best plan is as good as was asked for, or is proven not to get that good."""
        return self.incumbent.runs is not None and (
            self.incumbent.value <= self.enough or self.full_bound > self.enough > 0
        )

    def is_close(self) -> bool:
        """Whether the best plan is within the gap of what is proven of every plan."""
        return self.incumbent.is_within(self.solving.gap, self.full_bound)

    def is_proven_slower(self, limit_s: float) -> bool:
        """Where seconds are minimised: whether no plan at all takes at most ``limit_s``."""
        return (self.status == "infeasible" and self.scope == "full") or self.full_bound > limit_s

    def is_over(self) -> bool:
        """Whether nobody wants the search to go on: cancelled, good enough, within the gap of a bound on every plan, or
        without any plan."""
        ended = self.status == "infeasible" or (self.status == "optimal" and self.scope == "full")
        return self.deadline.cancelled or self.is_enough() or self.is_close() or ended

    def follow(self, policy: PolicyOf) -> None:
        """Has the strategies of the policy run in turn, until the search is over."""
        if self.deadline.cancelled or self.is_enough():
            return
        for strategy in policy(self):
            strategy.run(self)
            if self.is_over():
                break
        if self.is_close():
            self.status = "optimal"

    def improve(self, program: Program, until_s: float, seed: int = 0, nodes: int = NODES) -> None:
        """Improves neighbourhoods of the best plan in ``program`` until ``until_s``; ``seed`` and ``nodes``
        as for ``Search``."""
        self.search(program).improve(until_s, seed, nodes)

    def run(self, program: Program, first_s: float, turn_s: float = float("inf"), least_s: float = 0.0) -> Search:
        """Improves neighbourhoods until ``first_s``, then solves the whole program; its bound and status are the
        state's. ``turn_s`` as for ``Search``. ``least_s``: with less time than that until then and a plan in hand,
        neighbourhoods are improved instead."""
        self.scope, self.size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        search = self.search(program)
        search.turn_s = turn_s
        search.improve(first_s)
        until_s = min(turn_s, self.limit_s)
        if self.incumbent.runs is not None and self.deadline.left_s(until_s) < least_s:
            for seed in itertools.count(1):
                if self.deadline.left_s(until_s) <= 0 or not search.improve(until_s, seed):
                    return search
        self.status = search.run()
        self.program_bound = max(self.program_bound, search.program_bound)
        if self.scope == "full":
            self.full_bound = max(self.full_bound, search.program_bound)
        return search

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
        """The best plan, ``proof`` of it, and how the search ended; None where no plan was found. Raises
        ``KeyboardInterrupt`` where none was found before Ctrl-C."""
        known = self.incumbent.both()
        if known is None:
            if self.deadline.cancelled:
                raise KeyboardInterrupt
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

    def search(self, program: Program) -> Search:
        """A search of ``program`` for this state."""
        formulation = Formulation(program, self.solve, self.incumbent, self.solving.gap)
        return Search(
            formulation, self.deadline, self.enough, self.program_bound, self.full_bound, self.solving.gap, self.worker
        )

    def inner(
        self, best: Incumbent, limit: float, time_limit_s: float, *, enough: float = float("-inf")
    ) -> SearchState:
        """A search inside this one, for as long as this one may take, with ``best`` as its incumbent. Ctrl-C ends
        both."""
        solving = replace(self.solving, time_limit_s=min(time_limit_s, self.deadline.left_s()), prove=False)
        state = begun_state(best, limit, solving, enough=enough, cancellation=self.deadline.cancellation)
        if best.problem is self.incumbent.problem:
            state._index = self.index
        return state

    def tried(self, budget_bytes: int, time_limit_s: float, by: PolicyOf) -> SearchState:
        """Where bytes are minimised: a search inside this one for any plan that is fast enough and fits a budget, when
        it has ended."""
        best = Incumbent.fastest_within(self.incumbent.problem, budget_bytes)
        state = self.inner(best, budget_bytes, time_limit_s, enough=self.limit)
        state.follow_until_ctrl_c(by)
        return state

    def follow_until_ctrl_c(self, policy: PolicyOf) -> None:
        """As ``follow``; Ctrl-C between solves ends it, too."""
        with cancelled_by_ctrl_c(self.deadline):
            self.follow(policy)


@contextmanager
def cancelled_by_ctrl_c(deadline: Deadline) -> Iterator[None]:
    """What Ctrl-C raises inside, between solves, cancels the search; in a solve, the solver's adapter sees to that."""
    try:
        yield
    except KeyboardInterrupt:
        deadline.cancellation.asked = True


def begun_state(
    incumbent: Incumbent,
    limit: float,
    solving: Solving,
    progress: Progress | None = None,
    *,
    enough: float = float("-inf"),
    cancellation: Cancellation | None = None,
) -> SearchState:
    """A state whose time begins now. ``cancellation``: of a search that this one is a part of.

    Raises:
        SolverError: the solver is missing.
    """
    deadline = Deadline(solving.time_limit_s, progress, cancellation=cancellation or Cancellation())
    return SearchState(incumbent, limit, solving, deadline, deadline.heeded(find_solver(solving.solver)), enough)
