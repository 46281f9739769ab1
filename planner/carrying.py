"""Which parameters and which of an optimiser's state are carried in the second memory from step to step, by the
checkpoint program (``checkpoints/carried_state.py``), and a bound on every plan whatever it carries.

Of the program, what is carried is solved for as 0 or 1, and all else as in its linear relaxation: what is kept, made
again and moved is decided after that, for the tensors that are carried.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from monet.planner.checkpoints.carried_state import last_forward
from monet.planner.checkpoints.columns import CheckpointProgram, Checkpoints
from monet.planner.checkpoints.copies import copied_state, forward_checkpoints
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.problem import SYNCHRONOUS, Problem, StateTensor
from monet.planner.program.index import Index, index_of
from monet.planner.search.solving import Solving
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model

STAGES = 4
"""Checkpoints during backward operators: one of each of as many equal parts. On a Llama of 26 layers (bench_state.py)
eight bound no more, and took ten times as long."""
LARGEST = 20_000
"""Operators times checkpoints, at most: the relaxation of more takes longer than choosing is worth."""
GAP = 5e-3
"""Of the choice, relative."""
BUSY = 0.9
"""Of a step: with copies for more of it than that, the channel decides how long it takes."""
MARGINS = (0.0, 0.1)
"""Of the budget, set aside: what the program does not count (memory between checkpoints, and of recomputation)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """``carried``: tensors in the second memory from step to step; ``staying``: of these, those that are in memory from
    their last use in the forward pass to the first in the backward pass. ``taken``: of the channel's time, as much as
    their copies take; 0 where there is time enough for all."""

    carried: frozenset[str]
    staying: frozenset[str]
    taken: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Carrying:
    """``choices``: what to carry, each with more room left than the one before it. ``bound_s``: no plan takes less,
    whatever it carries; 0 where nothing is proven."""

    choices: tuple[Choice, ...]
    bound_s: float


def chosen_state(problem: Problem, state: Sequence[StateTensor], budget_bytes: int, solving: Solving) -> Carrying:
    """``state``: what may be carried, all of it in ``problem.fixed_bytes``. ``solving``: its solver, and of its time
    limit as much as all this may take.

    With the first choice, and those after it, there is room for one more tensor on its way beside any operator.
    """
    deadline_s = time.monotonic() + solving.time_limit_s
    index = index_of(problem)
    solve = solver(solving.solver)
    beside = problem.second is not None and problem.second.mode != SYNCHRONOUS
    spare_bytes = max((tensor.bytes for tensor in state), default=0) if beside else 0
    limits = [int(budget_bytes * (1 - margin)) - spare_bytes for margin in MARGINS]
    # Built once, for the least of the limits: rows that no point breaks there are broken nowhere.
    program = checkpoint_program(index, min(limits), _checkpoints(index, state), tuple(state))
    arrays = program.rows.arrays()
    memory = list(program.memory)

    def answer_of(limit_bytes: int, integer: Sequence[int] = ()) -> Answer:
        upper, whole = arrays.upper.copy(), np.zeros_like(arrays.integer)
        upper[memory] += limit_bytes - program.budget_bytes
        whole[list(integer)] = True
        count = len(arrays.cost)
        model = Model(replace(arrays, upper=upper, integer=whole), np.zeros(count), np.ones(count))
        return solve(model, Limits(max(0.0, deadline_s - time.monotonic()), GAP), None)

    answer = answer_of(budget_bytes)
    bound_s = program.base_s + answer.bound if np.isfinite(answer.bound) else 0.0
    choices: list[Choice] = []
    for limit_bytes in limits:
        answer = answer_of(limit_bytes, list(program.carried.values()))
        if answer.x is None:
            break
        choice = _choice(program, answer.x)
        if choice.carried and choice not in choices:
            choices.append(choice)
    return Carrying(tuple(choices), bound_s)


def _choice(program: CheckpointProgram, x: NDArray[np.float64]) -> Choice:
    """Of a point whose ``carried`` are 0 or 1, and whose other columns are nearly so, but for some."""
    carried = frozenset(name for name, column in program.carried.items() if x[column] > 0.5)
    over_turnaround = {
        tensor.id: program.stays[tensor.id, use]
        for tensor in program.state
        if (use := last_forward(tensor)) is not None
    }
    staying = frozenset(name for name, column in over_turnaround.items() if name in carried and x[column] > 0.5)
    return Choice(carried, staying, _taken(program, x))


def _taken(program: CheckpointProgram, x: NDArray[np.float64]) -> float:
    """Of the channel's time in a step; 0 where it is not busy for nearly all of it."""
    second = program.index.problem.beside
    if second is None:
        return 0.0
    step_s = program.base_s + float(np.dot(program.rows.costs, x))
    state_s = copied_state(program, second).at(x)
    moved = sum(program.index.size[name] * x[column] for name, column in program.gone.items())
    moved_s = moved * (1 / second.write_rate + 1 / second.read_rate)
    return state_s / step_s if state_s + moved_s > BUSY * step_s else 0.0


def _checkpoints(index: Index, state: Sequence[StateTensor]) -> Checkpoints:
    """Those of the forward pass, as far as copies run beside it, and where most gradients are there with the state that
    is used beside them: what an update of the largest parameter needs is there at once in any plan."""
    backward = index.problem.backward
    used = [sum(tensor.bytes for tensor in state if stage in tensor.backward) for stage in range(len(backward))]
    count = max(1, min(STAGES, LARGEST // max(1, len(index.problem.forward))))
    ends = [len(backward) * part // count for part in range(count + 1)]
    stages = {
        max(range(begin, end), key=lambda stage: backward[stage].live_during_bytes + used[stage])
        for begin, end in pairwise(ends)
        if begin < end
    }
    return Checkpoints(tuple(sorted(stages)), forward_checkpoints(index) or _largest_forward(index))


def _largest_forward(index: Index) -> tuple[int, ...]:
    """The forward operator that makes most, as the only checkpoint: parameters are used in both passes."""
    made = [sum(index.size[name] for name in operator.outputs) for operator in index.problem.forward]
    return (int(np.argmax(made)),) if made else ()
