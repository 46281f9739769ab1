"""Which implementations no plan needs, since another one is never worse."""

from __future__ import annotations

from monet.planner.problem import BackwardImplementation, ForwardImplementation, recompute_cost


def undominated_forward(implementations: list[ForwardImplementation]) -> tuple[ForwardImplementation, ...]:
    """Pareto front of (time, workspace beyond aliasing, what it destroys) in the forward pass."""
    front: list[ForwardImplementation] = []
    for q in sorted(implementations, key=lambda q: (q.time_s, q.workspace_bytes - q.aliased_bytes, q.name)):
        if not any(
            p.workspace_bytes - p.aliased_bytes <= q.workspace_bytes - q.aliased_bytes
            and p.overwrites in (None, q.overwrites)
            for p in front
        ):
            front.append(q)
    return tuple(front)


def undominated_again(implementations: list[ForwardImplementation]) -> tuple[ForwardImplementation, ...]:
    """Pareto front of (time, workspace beyond aliasing, what it destroys and reads) when run again."""

    def cost(q: ForwardImplementation) -> tuple[float, int]:
        seconds, workspace = recompute_cost(q)
        return seconds, workspace - q.aliased_bytes

    front: list[ForwardImplementation] = []
    for q in sorted(implementations, key=lambda q: (*cost(q), q.name)):
        if not any(
            cost(p)[1] <= cost(q)[1]
            and p.overwrites in (None, q.overwrites)
            and frozenset(p.recompute_reads) == frozenset(q.recompute_reads)
            for p in front
        ):
            front.append(q)
    return tuple(front)


def undominated_backward(
    implementations: tuple[BackwardImplementation, ...],
) -> tuple[BackwardImplementation, ...]:
    """Pareto front of (time, workspace beyond aliasing, what it reads)."""
    front: list[BackwardImplementation] = []
    for q in sorted(
        implementations, key=lambda q: (q.time_s, q.workspace_bytes - q.aliased_bytes, len(q.reads), q.name)
    ):
        if not any(
            p.workspace_bytes - p.aliased_bytes <= q.workspace_bytes - q.aliased_bytes
            and frozenset(p.reads) <= frozenset(q.reads)
            for p in front
        ):
            front.append(q)
    return tuple(front)
