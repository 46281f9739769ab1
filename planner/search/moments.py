"""Plans and a bound from the program of moments (``planner/moments``): deep networks in seconds.

    bound at the turnaround  →  a plan of its point  →  moments where that exceeds the budget, a better bound
                             →  plans with a reserve, halved between too little and enough

The bound is about every plan in the captured order: its scope is ``full``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from monet.planner.moments.plans import plan_of
from monet.planner.moments.program import Moments, MomentProgram, moment_program
from monet.planner.program.index import Index
from monet.planner.replay import Replay, replay
from monet.planner.search.best import BestPlan, Clock
from monet.planner.solution import Runs
from monet.planner.solvers.model import Answer, Limits, Model, Solve
from monet.planner.solvers.rows import Floats

MOST_STAGES, MOST_FORWARD = 6, 4
"""Moments during backward and during forward operators, at most."""
AT_ONCE = 3
"""Stages that become moments after one plan."""
SOLVE_S, SOLVE_GAP = 2.0, 1e-3
"""Limits of one solve for a plan."""
ROUNDS = 8
"""Solves for plans at most."""
ENOUGH_RESERVE = 0.003
"""Of the budget: a reserve is halved no further."""
APART = 0.01
"""Of all stages: moments nearer to each other than this count nearly the same."""


@dataclass(slots=True)
class MomentSearch:
    """``bound``: no plan of the problem takes less than that, in seconds. ``infeasible``: proven that none fits.

    ``seen``: every plan that was made on the way, those that do not fit included.
    """

    index: Index
    budget_bytes: int
    solve: Solve
    best: BestPlan
    clock: Clock
    gap: float
    bound: float = 0.0
    infeasible: bool = False
    seen: list[tuple[Runs, Replay]] = field(default_factory=list)
    program: MomentProgram | None = None
    interrupted: bool = False

    def run(self, until_s: float) -> None:
        """Until the best plan is within the gap, plans stop getting better, or the clock shows ``until_s``."""
        self._look_at(Moments(), until_s)
        low, high, reserve, fitted = 0.0, 0.9 * (self.budget_bytes - self.index.problem.fixed_bytes), 0.0, False
        for _ in range(ROUNDS):
            if self.infeasible or self.close() or self.program is None or self._left_s(until_s) <= 0:
                return
            answer = self._point(self.program, reserve, until_s)
            if answer.status == "infeasible" and reserve > 0:
                high, reserve = reserve, (low + reserve) / 2
                continue
            plan = None if answer.x is None else plan_of(self.program, answer.x)
            if plan is None:
                return
            cost = replay(self.index.problem, plan)
            self.seen.append((plan, cost))
            excess = cost.peak_bytes - self.budget_bytes
            if excess <= 0:
                self.best.offer(plan)
                fitted, high = True, reserve
                if reserve == 0 or high - low <= ENOUGH_RESERVE * self.budget_bytes:
                    return
                reserve = (low + high) / 2
                continue
            moments = self._with_worst(cost)
            if moments is not None:
                self._look_at(moments, until_s)
                continue
            low = reserve
            reserve = (low + high) / 2 if fitted else min(0.98 * high + 0.02 * low, reserve + 1.03 * excess)
            if high - low <= ENOUGH_RESERVE * self.budget_bytes:
                return

    def close(self) -> bool:
        """Whether the best plan is within the gap of the bound."""
        return self.best.value < float("inf") and self.best.value - self.bound <= self.gap * self.best.value

    def _left_s(self, until_s: float) -> float:
        return max(0.0, until_s - self.clock.elapsed_s())

    def _look_at(self, moments: Moments, until_s: float) -> None:
        """The program of these moments, and its bound."""
        self.program = moment_program(self.index, self.budget_bytes, moments)
        answer = self.solve(_model(self.program, integer=False), Limits(self._left_s(until_s), 0.0), self._tick)
        if answer.status == "infeasible":
            self.infeasible = True
        elif np.isfinite(answer.bound):
            self.bound = max(self.bound, self.program.base_s + answer.bound)
        self._check(answer)

    def _point(self, program: MomentProgram, reserve: float, until_s: float) -> Answer:
        limits = Limits(min(SOLVE_S, self._left_s(until_s)), SOLVE_GAP)
        answer = self.solve(_model(program, integer=True, reserve=reserve), limits, self._tick)
        if reserve == 0 and np.isfinite(answer.bound):
            self.bound = max(self.bound, program.base_s + answer.bound)
        self._check(answer)
        return answer

    def _check(self, answer: Answer) -> None:
        if answer.status == "interrupted":
            raise KeyboardInterrupt

    def _with_worst(self, cost: Replay) -> Moments | None:
        """The moments, and besides those where a plan exceeds the budget most; None where there is no new one."""
        assert self.program is not None
        moments = self.program.moments
        worst: dict[int, int] = {}
        forward: dict[int, int] = {}
        passed = -1
        for moment in cost.moments:
            if moment.stage is not None:
                worst[moment.stage] = max(worst.get(moment.stage, 0), moment.bytes)
            elif moment.what.startswith("forward"):
                passed += 1
                forward[passed] = moment.bytes
        room = min(AT_ONCE, MOST_STAGES - len(moments.stages))
        stages = _apart(worst, self.budget_bytes, moments.stages, room, APART * len(self.index.problem.backward))
        ahead = _apart(
            forward, self.budget_bytes, moments.forward, MOST_FORWARD - len(moments.forward),
            APART * len(self.index.problem.forward),
        )  # fmt: skip
        if not stages and not ahead:
            return None
        return Moments(tuple(sorted({*moments.stages, *stages})), tuple(sorted({*moments.forward, *ahead})))

    def _tick(self, x: Floats | None, bound: float | None) -> None:
        if self.clock.progress is not None:
            best = None if self.best.cost is None else self.best.value
            gap = None if not best or not self.bound else max(0.0, (best - self.bound) / best)
            self.clock.progress(best, self.bound or None, gap, self.clock.elapsed_s())


def _apart(bytes_at: dict[int, int], budget_bytes: int, known: tuple[int, ...], room: int, apart: float) -> list[int]:
    """Up to ``room`` positions that exceed the budget most, none near another one or one that is known."""
    chosen: list[int] = []
    for position in sorted(bytes_at, key=lambda at: (-bytes_at[at], at)):
        if len(chosen) >= room or bytes_at[position] <= budget_bytes:
            break
        if all(abs(position - other) > apart for other in (*known, *chosen)):
            chosen.append(position)
    return chosen


def _model(program: MomentProgram, *, integer: bool, reserve: float = 0.0) -> Model:
    """What is solved; ``reserve``: bytes taken off the budget at every moment."""
    arrays = program.rows.arrays()
    upper = arrays.upper.copy()
    upper[program.memory] -= reserve
    arrays = replace(arrays, upper=upper, integer=np.full(len(arrays.cost), integer))
    return Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
