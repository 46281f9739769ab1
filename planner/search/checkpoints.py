"""Plans and a bound from the checkpoint program (``planner/checkpoints``): deep networks in seconds.

    linear relaxation  →  a bound on every plan in the problem's order: its scope is ``full``
                       →  what it decides is fixed, the few fractions are solved for: a point, its plan, a replay
                       →  where that exceeds the budget: a reserve at the turnaround until a first plan fits;
                          then repaired; a checkpoint more, or a reserve, and again

The linear relaxation leaves a few dozen of thousands of columns fractional, so the second step takes a tenth of a
second and loses some tenths of a percent; branch and bound on all columns finds no such points in as many seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from monet.errors import InvalidPlan
from monet.planner.checkpoints.columns import Checkpoint, CheckpointProgram, Checkpoints
from monet.planner.checkpoints.copies import forward_checkpoints
from monet.planner.checkpoints.plans import plan_of
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.checkpoints.repair import repaired
from monet.planner.program.index import Index
from monet.planner.replay import Replay, replay
from monet.planner.search.incumbent import Deadline, Incumbent
from monet.planner.search.search import Search
from monet.planner.solution import Runs
from monet.planner.solvers.model import Answer, Limits, Model, Solve
from monet.planner.solvers.rows import Floats

MOST_STAGES, MOST_FORWARD = 6, 6
"""Checkpoints during backward and during forward operators, at most."""
AT_ONCE = 3
"""Stages that become checkpoints after one plan."""
POINT_S, POINT_GAP = 2.0, 5e-4
"""Limits of the solve for what the relaxation leaves open."""
STALE_ROUNDS, POOR_ROUNDS = 5, 16
"""Plans in a row that are no better than the best, at most, once there is one; and where that is further than
``POOR_GAP`` from the bound."""
POOR_GAP = 0.1
"""A plan that is further than this from the bound is worth more time here, whatever comes after."""
QUICK_ROUNDS = 5
"""Programs of the turnaround alone that are solved, with more set aside each time, until one's plan fits."""
PATIENCE = 0.01
"""Of the step's seconds, as for the relaxation."""
LEAST_GAIN = 1e-4
"""Relative; a plan that is better by less is no better."""
LEAST_STEP = 0.002
"""Of the budget: a reserve is halved no further."""
MORE = 1.03
"""So many times what a plan exceeds the budget by is set aside."""
APART = 0.01
"""Of all operators: checkpoints nearer to each other than this count nearly the same."""
MOST_PROVEN = 18
"""Checkpoints during backward operators of the program that branch and bound is for."""
WHOLE = 1e-6
"""A column this near to 0 or 1 is decided."""


@dataclass(slots=True)
class _Reserve:
    """Bytes set aside at a checkpoint: ``low`` was too little, ``high`` enough."""

    bytes: float = 0.0
    low: float = 0.0
    high: float | None = None


@dataclass(slots=True)
class CheckpointSearch:
    """``bound``: no plan of the problem takes less than that, in seconds. ``infeasible``: proven that none fits.

    ``enough``: a value of the best plan at which ``run`` ends. ``seen``: every plan that was made on the way, those
    that do not fit included.
    """

    index: Index
    budget_bytes: int
    solve: Solve
    incumbent: Incumbent
    deadline: Deadline
    gap: float
    enough: float = float("-inf")
    bound: float = 0.0
    infeasible: bool = False
    seen: list[tuple[Runs, Replay]] = field(default_factory=list)
    reserves: dict[Checkpoint, _Reserve] = field(default_factory=dict)
    _checkpoints: Checkpoints = field(default_factory=Checkpoints)
    _basis: tuple[CheckpointProgram, object] | None = None
    _tried: Floats | None = None

    def run(self, until_s: float, poor_until_s: float | None = None) -> None:
        """Until the best plan is within the gap, plans stop getting better, or until ``until_s``;
        ``poor_until_s`` as long as the best plan is further than ``POOR_GAP`` from the bound.
        """
        self._checkpoints = Checkpoints(forward=forward_checkpoints(self.index))
        program = checkpoint_program(self.index, self.budget_bytes, self._checkpoints)
        # Whatever comes after is short of a bound without it.
        first_until_s = until_s if poor_until_s is None else max(until_s, poor_until_s)
        first = self._first(program, first_until_s)
        if first is None:
            return
        self._offer(*first, first_until_s)
        if self._is_enough():
            return
        stale, before = 0, None
        while True:
            poor = not self.incumbent.is_within(POOR_GAP, self.bound)
            if stale >= (POOR_ROUNDS if poor else STALE_ROUNDS):
                return
            if not poor:
                poor_until_s = None
            ends_s = until_s if poor_until_s is None else poor_until_s
            if self._left_s(ends_s) <= 0:
                return
            known = self.incumbent.value
            made = self._plan(program, ends_s)
            if made is None:
                return
            runs, cost = made
            self._offer(*made, ends_s)
            if self._is_enough():
                return
            stale = (
                0
                if self.incumbent.value == float("inf") or self.incumbent.value < known * (1 - LEAST_GAIN)
                else stale + 1
            )
            if cost.peak_bytes <= self.budget_bytes:
                if not self._set_aside_less():
                    return
                continue
            checkpoints = self._with_worst(program.checkpoints, cost, again=runs == before)
            before = runs
            if checkpoints != program.checkpoints:
                self._checkpoints = checkpoints
                program = checkpoint_program(self.index, self.budget_bytes, checkpoints)
            elif not self._set_aside_more(program, cost):
                return

    def _first(self, program: CheckpointProgram, until_s: float) -> tuple[Runs, Replay] | None:
        """A plan of the turnaround alone, the first that fits or the last one made. Its program is solved in tenths of
        a second, so a first plan is there before the repair of a deep network's would be."""
        made: tuple[Runs, Replay] | None = None
        for _ in range(QUICK_ROUNDS):
            new = self._plan(program, until_s)
            if new is None:
                break
            made = new
            self.seen.append(made)
            if made[1].peak_bytes <= self.budget_bytes or not self._set_aside_more(program, made[1]):
                break
        self.reserves.clear()
        return made

    def prove(self, until_s: float, planned: Search | None = None) -> None:
        """Branch and bound on the checkpoint program, until the best plan is within the gap of the bound or until
        ``until_s``: where the linear relaxation is weak, as with large workspaces, the integer program is strong.
        Where it is solved and its plan does not fit, again with the checkpoints at which it does not; where the plan
        waits for copies, with those at which there is no room for an earlier one.
        ``planned``: the search of a program whose worker improves the best plan meanwhile.
        """
        checkpoints = self._checkpoints
        for _, cost in self.seen:
            if cost.peak_bytes > self.budget_bytes:
                room = min(AT_ONCE, max(0, MOST_PROVEN - len(checkpoints.stages)))
                checkpoints = _with_broken(checkpoints, _over(cost, self.budget_bytes), (room, 0))
        with planned.beside() if planned is not None else nullcontext():
            proven: Checkpoints | None = checkpoints
            while proven is not None and self._left_s(until_s) > 0:
                proven = self._proven(proven, until_s)

    def _proven(self, checkpoints: Checkpoints, until_s: float) -> Checkpoints | None:
        """Solves the integer program of ``checkpoints`` for its bound; returns them with those that its plan breaks,
        None where it breaks none or nothing more is wanted."""
        program = checkpoint_program(self.index, self.budget_bytes, checkpoints)
        last: tuple[Runs, Replay] | None = None

        def tick(x: Floats | None, bound: float | None) -> bool:
            nonlocal last
            if bound is not None:
                self.bound = max(self.bound, program.base_s + bound)
            if x is not None and x is not self._tried:
                self._tried = x
                made = self._replayed(program, x)
                if made is not None:
                    last = made
                    self._offer(*made, until_s)
            self._tick(x, bound)
            return self.is_close()

        model = _model(program, {})
        if self.incumbent.runs is not None:  # a plan that waits longer than this is none better
            spare_s = max(0.0, self.incumbent.value - program.base_s)
            for column in program.waiting:
                model.fixed_upper[column] = min(1.0, spare_s / program.rows.costs[column])
        answer = self.solve(model, Limits(self._left_s(until_s), POINT_GAP), tick)
        if np.isfinite(answer.bound):
            self.bound = max(self.bound, program.base_s + answer.bound)
        if self.deadline.cancelled or tick(answer.x, None) or answer.status != "optimal" or last is None:
            return None
        runs, cost = last
        limit_bytes = self.budget_bytes
        if cost.peak_bytes <= limit_bytes and cost.traffic is not None and cost.traffic.waited_s > 0:
            # Of carried state alone the copies are given, and no checkpoint is about them.
            limit_bytes -= max((self.index.size[name] for name in runs.moved), default=0)
        more = _with_broken(checkpoints, _over(cost, limit_bytes), (AT_ONCE, AT_ONCE))
        return None if more == checkpoints else more

    def _offer(self, runs: Runs, cost: Replay, until_s: float) -> None:
        """Offers the plan; one that does not fit is repaired first, where it can be."""
        self.seen.append((runs, cost))
        if cost.peak_bytes > self.budget_bytes:
            deadline_s = time.monotonic() + self._left_s(until_s)
            fixed = repaired(self.index, runs, self.budget_bytes, deadline_s)
            if fixed is None:
                return
            runs = fixed
            self.seen.append((runs, replay(self.index.problem, runs)))
        if self.incumbent.offer(runs):
            self._tick(None, None)

    def is_close(self) -> bool:
        """Whether the best plan is within the gap of the bound."""
        return self.incumbent.is_within(self.gap, self.bound)

    def _is_enough(self) -> bool:
        return self.is_close() or self.incumbent.reaches(self.enough)

    def _plan(self, program: CheckpointProgram, until_s: float) -> tuple[Runs, Replay] | None:
        """A plan for the budget less what is set aside, and the bound where that is nothing."""
        reserves = {checkpoint: reserve.bytes for checkpoint, reserve in self.reserves.items() if reserve.bytes}
        model = _model(program, reserves)
        relaxed = replace(model, arrays=replace(model.arrays, integer=np.zeros_like(model.arrays.integer)))
        basis = self._basis[1] if self._basis is not None and self._basis[0] is program else None
        answer = self._solved(replace(relaxed, basis=basis), Limits(self._left_s(until_s), 0.0))
        if answer.basis is not None:
            self._basis = program, answer.basis
        if not reserves:
            self.infeasible = answer.status == "infeasible" and self.incumbent.runs is None
            if np.isfinite(answer.bound):
                self.bound = max(self.bound, program.base_s + answer.bound)
        if answer.x is None or answer.status != "optimal":
            return None
        fixed = np.zeros(len(answer.x), dtype=np.bool_)
        fixed[list(program.held.values())] = True
        fixed &= np.abs(answer.x - np.round(answer.x)) <= WHOLE
        lower, upper = np.where(fixed, np.round(answer.x), 0.0), np.where(fixed, np.round(answer.x), 1.0)
        # A solver's first points wait for whatever it has moved, and it takes long to find better ones.
        patient = program.waiting
        upper[patient] = np.minimum(1.0, answer.x[patient] + self._patience(program))
        for open_model in (
            replace(model, fixed_lower=lower, fixed_upper=upper),
            replace(model, fixed_upper=np.where(fixed, 1.0, upper)),
        ):
            point = self._solved(open_model, Limits(min(POINT_S, self._left_s(until_s)), POINT_GAP))
            made = None if point.x is None else self._replayed(program, point.x)
            if made is not None:
                return made
        return None

    def _patience(self, program: CheckpointProgram) -> list[float]:
        """How much longer than in the relaxation a point may wait, of what each column of waiting stands for."""
        return [PATIENCE * program.base_s / program.rows.costs[column] for column in program.waiting]

    def _replayed(self, program: CheckpointProgram, x: Floats) -> tuple[Runs, Replay] | None:
        """The plan of a point, and its cost; None where there is none."""
        runs = plan_of(program, x)
        try:
            return None if runs is None else (runs, replay(self.index.problem, runs))
        except InvalidPlan:  # what can only be run again in place may have destroyed what is read later
            return None

    def _solved(self, model: Model, limits: Limits) -> Answer:
        return self.solve(model, limits, self._tick)

    def _left_s(self, until_s: float) -> float:
        return self.deadline.left_s(until_s)

    def _with_worst(self, checkpoints: Checkpoints, cost: Replay, *, again: bool) -> Checkpoints:
        """The checkpoints, and besides those where a plan exceeds the budget most and that are not near one of them;
        where that is the plan of the time before, ``again``, however near they are, and however many there are."""
        problem = self.index.problem
        if again:
            return _with_broken(checkpoints, _over(cost, self.budget_bytes), (AT_ONCE, AT_ONCE))
        room = min(AT_ONCE, MOST_STAGES - len(checkpoints.stages)), max(0, MOST_FORWARD - len(checkpoints.forward))
        apart = APART * len(problem.backward), APART * len(problem.forward)
        return _with_broken(checkpoints, _over(cost, self.budget_bytes), room, apart)

    def _set_aside_more(self, program: CheckpointProgram, cost: Replay) -> bool:
        """Where the plan exceeds the budget, at the checkpoint that is nearest; False where that is nowhere any
        more."""
        count = len(self.index.problem.forward)

        def time(checkpoint: Checkpoint) -> int:
            return checkpoint[1] + (count + 1 if checkpoint[0] else 0)

        excess: dict[Checkpoint, int] = {}
        for over, size in _over(cost, self.budget_bytes).items():
            near = min(program.memory.values(), key=lambda at: abs(time(at) - time(over)), default=None)
            if near is None:
                return False
            excess[near] = max(excess.get(near, 0), size)
        changed = False
        for checkpoint, size in excess.items():
            reserve = self.reserves.setdefault(checkpoint, _Reserve())
            before = reserve.low = reserve.bytes
            if reserve.high is None or reserve.high - before <= LEAST_STEP * self.budget_bytes:
                reserve.bytes, reserve.high = before + MORE * size, None
            else:
                reserve.bytes = (before + reserve.high) / 2
            changed = True
        return changed

    def _set_aside_less(self) -> bool:
        """Halfway to what was too little; False where that is near."""
        changed = False
        for reserve in self.reserves.values():
            reserve.high = reserve.bytes
            if reserve.high - reserve.low > LEAST_STEP * self.budget_bytes:
                reserve.bytes = (reserve.low + reserve.high) / 2
                changed = True
        return changed

    def _tick(self, x: Floats | None, bound: float | None) -> None:
        self.deadline.tell(self.incumbent, self.bound)


def _over(cost: Replay, budget_bytes: int) -> dict[Checkpoint, int]:
    """By how many bytes a plan exceeds the budget, at each operator where it does."""
    over: dict[Checkpoint, int] = {}
    forward = -1
    for moment in cost.moments:
        if moment.stage is None and moment.what.startswith("forward"):
            forward += 1
        at = (False, forward) if moment.stage is None else (True, moment.stage)
        if moment.bytes > budget_bytes:
            over[at] = max(over.get(at, 0), moment.bytes - budget_bytes)
    return over


def _with_broken(
    checkpoints: Checkpoints,
    over: Mapping[Checkpoint, int],
    room: tuple[int, int],
    apart: tuple[float, float] = (0.0, 0.0),
) -> Checkpoints:
    """The checkpoints, and those that exceed a limit most: up to ``room`` stages and forward operators, each further
    than ``apart`` from the others."""
    stages = {at: size for (backward, at), size in over.items() if backward and at >= 0}
    forward = {at: size for (backward, at), size in over.items() if not backward}
    return Checkpoints(
        _with_apart(checkpoints.stages, stages, room[0], apart[0]),
        _with_apart(checkpoints.forward, forward, room[1], apart[1]),
    )


def _with_apart(known: tuple[int, ...], over: Mapping[int, int], room: int, apart: float) -> tuple[int, ...]:
    """``known``, and up to ``room`` positions that exceed the budget most, none near another."""
    chosen = list(known)
    for position in sorted(over, key=lambda at: (-over[at], at)):
        if len(chosen) - len(known) >= room:
            break
        if all(abs(position - other) > apart for other in chosen):
            chosen.append(position)
    return tuple(sorted(chosen))


def _model(program: CheckpointProgram, reserves: Mapping[Checkpoint, float]) -> Model:
    """What is solved; ``reserves``: bytes taken off the budget at checkpoints."""
    arrays = program.rows.arrays()
    upper = arrays.upper.copy()
    for row, checkpoint in program.memory.items():
        upper[row] -= reserves.get(checkpoint, 0.0)
    count = len(arrays.cost)
    return Model(replace(arrays, upper=upper), np.zeros(count), np.ones(count))
