"""Any mixed-integer solver that CVXPY has installed: Gurobi, CPLEX, SCIP, CBC, GLPK_MI, ...

CVXPY has no common interface to starts, interrupts or bounds, so here the start is not passed and a Ctrl-C is the
solver's own business. The bound is read where CVXPY hands it on; otherwise it is taken from the objective and the gap
after an optimal end, and is −inf after a limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from monet.errors import SolverError
from monet.planner.solvers.model import Answer, Limits, Model, Solve, Status, Tick

MIP_SOLVERS = frozenset(
    {"CBC", "COPT", "CPLEX", "CUOPT", "GLPK_MI", "GUROBI", "HIGHS", "KNITRO", "MOSEK", "SCIP", "SCIPY", "XPRESS"}
)
"""Solvers that take 0-1 linear programs; CVXPY's own list also has solvers of small cones only."""
GUROBI_FREE_COLUMNS = 2000
"""Columns, and rows, that the licence inside Gurobi's wheel allows."""


def installed_mip_solvers() -> frozenset[str]:
    """Names of the mixed-integer solvers that CVXPY can call here; none where CVXPY does not load."""
    try:
        import cvxpy
    except ImportError:
        return frozenset()
    return MIP_SOLVERS & frozenset(cvxpy.installed_solvers())


def solve_with(name: str) -> Solve:
    """The adapter for one installed solver."""

    def solve(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        return solve_cvxpy(name, model, limits, tick)

    return solve


def solve_cvxpy(name: str, model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
    """Minimises ``model`` by the CVXPY solver ``name``.

    Raises:
        SolverError: the solver fails, has no licence, or its licence is limited to smaller programs.
    """
    import cvxpy
    from scipy.sparse import csr_array

    arrays = model.arrays
    shape = (len(arrays.lower), len(arrays.cost))
    matrix = csr_array((arrays.value, arrays.column_index, arrays.row_start), shape=shape)
    x = cvxpy.Variable(shape[1], boolean=(np.flatnonzero(arrays.integer),))
    # A binary column needs no rows for its range, and a size-limited licence counts rows.
    shares = np.flatnonzero(~arrays.integer)
    fixed = np.flatnonzero(model.fixed_lower == model.fixed_upper)
    constraints = [x[fixed] == model.fixed_lower[fixed]] if len(fixed) else []
    if len(shares):
        constraints += [x[shares] >= 0, x[shares] <= 1]
    equal = np.flatnonzero(arrays.lower == arrays.upper)
    above = np.flatnonzero(np.isfinite(arrays.lower) & (arrays.lower != arrays.upper))
    below = np.flatnonzero(np.isfinite(arrays.upper) & (arrays.lower != arrays.upper))
    if len(equal):
        constraints.append(matrix[equal] @ x == arrays.upper[equal])
    if len(above):
        constraints.append(matrix[above] @ x >= arrays.lower[above])
    if len(below):
        constraints.append(matrix[below] @ x <= arrays.upper[below])
    problem = cvxpy.Problem(cvxpy.Minimize(arrays.cost @ x), constraints)
    try:
        problem.solve(solver=name, **_options(name, limits))
    except KeyboardInterrupt:  # no solver keeps its point
        return Answer("interrupted", None, float("inf"), float("-inf"))
    except Exception as error:  # every solver raises errors of its own
        limited = name == "GUROBI" and _gurobi_is_size_limited()
        raise SolverError(_explain(name, error, shape, limited=limited)) from error
    if tick is not None:
        tick(x.value, None)
    return _answer(name, problem, x.value, limits)


def _options(name: str, limits: Limits) -> dict[str, Any]:
    """Time limit and gap in each solver's own words; without an entry the solver's defaults rule."""
    time_s, gap = limits.time_s, limits.gap
    table: dict[str, dict[str, Any]] = {
        "CBC": {"maximumSeconds": time_s, "allowableFractionGap": gap},
        "COPT": {"TimeLimit": time_s, "RelGap": gap},
        "CPLEX": {"cplex_params": {"timelimit": time_s, "mip.tolerances.mipgap": gap}},
        "GUROBI": {"TimeLimit": time_s, "MIPGap": gap},
        "HIGHS": {"time_limit": time_s, "mip_rel_gap": gap},
        "MOSEK": {"mosek_params": {"MSK_DPAR_MIO_MAX_TIME": time_s, "MSK_DPAR_MIO_TOL_REL_GAP": gap}},
        "SCIP": {"scip_params": {"limits/time": time_s, "limits/gap": gap}},
        "SCIPY": {"scipy_options": {"time_limit": time_s, "mip_rel_gap": gap}},
        "XPRESS": {"maxtime": int(time_s), "miprelstop": gap},
    }
    return table.get(name, {})


def _gurobi_is_size_limited() -> bool:
    """Whether Gurobi's licence refuses 2,001 columns. CVXPY hides why Gurobi failed, so Gurobi is asked again."""
    import gurobipy

    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as environment, gurobipy.Model(env=environment) as probe:
            probe.addVars(GUROBI_FREE_COLUMNS + 1)
            probe.optimize()
    except gurobipy.GurobiError as error:
        return bool(error.errno == gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED)
    return False


def _explain(name: str, error: Exception, shape: tuple[int, int], *, limited: bool = False) -> str:
    """What failed and what to do; ``shape``: rows and columns, ``limited``: the licence is known to be for fewer."""
    text = " ".join(str(error).split())
    lower = text.lower()
    if limited or "size-limited" in lower or "too large" in lower:
        return (
            f"{name}'s licence is limited to smaller programs than this one ({shape[0]} rows, {shape[1]} columns). "
            f"Use a full licence, a smaller window, or the solver HIGHS. {name} says: {text}"
        )
    if "licen" in lower:
        return f"{name} has no valid licence here; use the solver HIGHS. {name} says: {text}"
    return f"{name} failed through CVXPY: {text}"


def _answer(name: str, problem: Any, x: Any, limits: Limits) -> Answer:
    if problem.status in ("infeasible", "infeasible_inaccurate"):
        return Answer("infeasible", None, float("inf"), float("inf"))
    if x is None:
        if problem.status == "user_limit":
            return Answer("time_limit", None, float("inf"), float("-inf"))
        raise SolverError(f"{name} ended without an answer: {problem.status}")
    objective = float(problem.value)
    optimal = problem.status == "optimal"
    status: Status = "optimal" if optimal else "time_limit"
    bound = _bound(problem)
    if bound is None:
        bound = objective - limits.gap * abs(objective) if optimal else float("-inf")
    return Answer(status, np.asarray(x, dtype=np.float64), objective, min(bound, objective))


def _bound(problem: Any) -> float | None:
    """The proven bound, where the solver's statistics carry one."""
    extra = getattr(problem.solver_stats, "extra_stats", None)
    for attribute in ("ObjBound", "mip_dual_bound"):
        value = getattr(extra, attribute, None)
        if value is not None and np.isfinite(value):
            return float(value)
    return None
