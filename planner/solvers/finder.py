"""Finds a solver by name."""

from __future__ import annotations

from monet.errors import SolverError
from monet.planner.solvers.model import Solve


def solver(name: str) -> Solve:
    """The adapter for ``HIGHS``, or for any mixed-integer solver that CVXPY has installed.

    Raises:
        SolverError: no solver of that name is installed; the message lists those that are.
    """
    from monet.planner.solvers.scaling import scaled

    wanted = name.upper()
    if wanted == "HIGHS":
        try:
            from monet.planner.solvers.highs import solve_highs
        except ImportError as error:
            raise SolverError(f"the solver HIGHS needs the package highspy: {error}") from error
        return scaled(solve_highs)
    from monet.planner.solvers.cvxpy import installed_mip_solvers, solve_with

    installed = installed_mip_solvers()
    if wanted not in installed:
        names = ", ".join(["HIGHS", *sorted(set(installed) - {"HIGHS"})])
        raise SolverError(f"no solver {name!r} is installed; installed are: {names}")
    return scaled(solve_with(wanted))
