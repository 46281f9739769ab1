"""A bound on every plan, from a relaxation of the full program."""

from __future__ import annotations

from dataclasses import replace

from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.search.incumbent import Deadline
from monet.planner.search.search import Search

PROOF_WINDOW = 16
"""The first window inside the relaxation that bounds the full program; wider is tighter and slower."""
PROOF_SMALL = 10_000
"""Up to so many forward by backward operators the full program itself is solved, after the first relaxation."""


def bound_full_program(planned: Search, budget_bytes: int, time_limit_s: float, first: float) -> tuple[float, str]:
    """A bound on the full program, in seconds; and ``optimal`` where the best plan is within the gap, else
    ``time_limit`` or ``interrupted``. ``planned``: the search so far; its worker goes on meanwhile.

    From relaxations, each with twice the window of the one before, as long as there is time; where the full program is
    small enough to be solved itself, after the first relaxation, which gets the share ``first`` of the time.
    """
    problem = planned.formulation.incumbent.problem
    begun = Deadline(time_limit_s, planned.deadline.progress, cancellation=planned.deadline.cancellation)
    small = len(problem.forward) * len(problem.backward) <= PROOF_SMALL
    window, bound, status = PROOF_WINDOW, 0.0, "time_limit"
    while status == "time_limit" and begun.left_s() > 0:
        share = first if small and window == PROOF_WINDOW else 1.0
        deadline = replace(begun, time_limit_s=share * time_limit_s)
        whole = window >= len(problem.backward) or (small and window > PROOF_WINDOW)
        program = build_program(problem, budget_bytes, None if whole else window, relaxed=not whole)
        add_memory_rows(program)
        formulation = replace(planned.formulation, program=program)
        search = Search(formulation, deadline, planned.enough, bound, planned.full_bound, planned.gap, planned.worker)
        status = search.bound_beside(planned, relaxed=not whole)
        bound = search.program_bound
        if whole or search.is_over():
            break
        window *= 2
    return bound, status
