"""The planner's answer: what is kept, what is run again before which backward operator, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a forward operator; ``intermediates`` are made right after it, in this order.

    ``writes``: tensors and intermediates whose copying to the second memory begins after it; ``releases``: those whose
    memory is free from then on, once their copies are complete. Only in the forward pass.
    """

    operator: str
    implementation: str
    intermediates: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Recomputation in forward order, then one backward operator.

    Before both, ``issues``: what begins to be read back from the second memory, into memory of its own from here on,
    and ``returns``: what is there to be read from here on. An issue comes before its return, or in the same stage.
    """

    recompute: tuple[Run, ...]
    backward: str
    implementation: str
    issues: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runs:
    """What a plan runs: the forward pass, then stage by stage the backward pass. This is what is replayed, ordered and
    unrolled; what it costs and what was proven about it is a ``Solution``'s."""

    forward: tuple[Run, ...]
    stages: tuple[Stage, ...]

    @property
    def moved(self) -> tuple[str, ...]:
        """What is moved to the second memory, in the order of the writes."""
        return tuple(name for run in self.forward for name in run.writes)


@dataclass(frozen=True, slots=True)
class Proof:
    """No point of the program named by ``scope`` takes less than ``bound_s`` seconds; 0 while nothing better is proven.

    ``scope``: ``full``, or ``window N``, with what is offered besides recomputation in the windows: see
    ``Program.scope``.
    """

    bound_s: float
    scope: str


@dataclass(frozen=True, slots=True)
class Solution:
    """Runs with their exact cost by replay, and what was proven about it.

    ``objective_s``: predicted seconds. ``peak_bytes``: fixed bytes included. ``status``: ``optimal`` (within the asked
    gap), ``time_limit``, ``interrupted``, ``good_enough`` (as good as the caller asked for, or proven that nothing is),
    ``smallest_known`` (none was found that fits by the program's count, but this one does once it is ordered), or
    ``heuristic`` (made by a fixed policy). ``proof``: None where no program was solved. ``build_s`` and ``solve_s`` are
    wall seconds. ``columns`` and ``rows``: size of the 0-1 program, before the solver's presolve; 0 where there was
    none. ``unfilled``: the runs before all was kept that there was room for, where that is not the same.
    """

    runs: Runs
    objective_s: float
    peak_bytes: int
    status: str = "heuristic"
    proof: Proof | None = None
    build_s: float = 0.0
    solve_s: float = 0.0
    columns: int = 0
    rows: int = 0
    unfilled: Runs | None = None

    @property
    def bound_s(self) -> float:
        """0 where nothing was proven: no plan takes less than that."""
        return 0.0 if self.proof is None else self.proof.bound_s

    @property
    def bound_scope(self) -> str:
        """``none`` where nothing was proven."""
        return "none" if self.proof is None else self.proof.scope

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, a fraction."""
        return (self.objective_s - self.bound_s) / self.objective_s if self.objective_s > 0 else 0.0
