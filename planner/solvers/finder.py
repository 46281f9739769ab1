"""Finds a solver by its name: an adapter of this package, with ``scaling.py`` around it.

A solver's library is imported once that solver is asked for: it may be missing, and CVXPY takes long to load.
"""

from __future__ import annotations

from monet.errors import SolverError
from monet.planner.solvers.model import Solve
from monet.planner.solvers.reduction import reduced
from monet.planner.solvers.scaling import scaled


def solver(name: str) -> Solve:
    """``HIGHS``, or any mixed-integer solver that CVXPY has installed; ``name`` in upper or lower case.

    Raises:
        SolverError: no solver of that name is installed; the message lists those that are.
    """
    upper = name.upper()
    if upper == "HIGHS":
        try:
            from monet.planner.solvers.highs_process import solve
        except ImportError as error:
            raise SolverError(f"the solver HIGHS needs the package highspy: {error}") from error
        return scaled(reduced(solve))
    from monet.planner.solvers.cvxpy import installed_mip_solvers, solve_with

    installed = installed_mip_solvers()
    if upper not in installed:
        names = ", ".join(["HIGHS", *sorted(set(installed) - {"HIGHS"})])
        raise SolverError(f"no solver {name!r} is installed; installed are: {names}")
    return scaled(reduced(solve_with(upper)))
