"""A schedule: the calls of a solution, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monet.base.measurement import Measurement
from monet.ops.offers.implementation import Implementation
from monet.ops.update_order import updates_of
from monet.pipeline.lowering import Lowered
from monet.planner.solution import Run, Runs
from monet.plans.format import READ, WAIT, WRITE


@dataclass(frozen=True, slots=True)
class Call:
    """One operator run of a schedule, before it has a place in memory; ``kind`` and ``node`` as in ``PlanStep``."""

    kind: str
    node: str
    implementation: Implementation
    measured: Measurement


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a storage to or from the second memory is issued (``write``, ``read``) or waited for (``wait``).

    ``back``: one from there is waited for.
    """

    kind: str
    storage: str
    back: bool = False


def calls(runs: Runs, lowered: Lowered) -> tuple[Call, ...]:
    """The runs in program order: forward, then stage by stage recomputation and backward."""
    return tuple(call for call in with_moves(runs, lowered) if isinstance(call, Call))


def with_moves(runs: Runs, lowered: Lowered) -> tuple[Call | Copy, ...]:
    """The same, and copies where the plan moves what the step has made."""
    catalogue, profile = lowered.catalogue, lowered.profile
    graph = catalogue.graph
    schedule: list[Call | Copy] = []

    def add(kind: str, node: str, implementation: Implementation) -> None:
        schedule.append(Call(kind, node, implementation, profile.of(implementation, catalogue)))

    def run(kind: str, chosen: Run, named: Mapping[str, Implementation], name: str) -> None:
        add(kind, chosen.operator, named[name])
        makers = {saved.value.name: saved.implementation for saved in catalogue.intermediates.get(chosen.operator, ())}
        for intermediate in chosen.intermediates:
            add(kind, intermediate, makers[intermediate])

    chosen = {r.operator: r for r in runs.forward}
    for op in graph.forward:
        if not op.view:
            run("forward", chosen[op.name], catalogue.forward[op.name], chosen[op.name].implementation)
            schedule.extend(Copy(WRITE, name) for name in chosen[op.name].writes)
            schedule.extend(Copy(WAIT, name) for name in chosen[op.name].releases)
    updates = updates_of(graph)
    for stage in runs.stages:
        schedule.extend(Copy(READ, name) for name in stage.issues)
        schedule.extend(Copy(WAIT, name, back=True) for name in stage.returns)
        for again in stage.recompute:
            name = lowered.recompute_name[again.operator][again.implementation]
            run("recompute", again, catalogue.recompute[again.operator], name)
        kind = "update" if stage.backward in updates else "backward"
        add(kind, stage.backward, catalogue.backward[stage.backward][stage.implementation])
    return tuple(schedule)


def placed_storages(lowered: Lowered) -> frozenset[str]:
    """Storages that live in the arena: the step makes them, they neither enter nor leave it, but for gradients that are
    freed before the next step and state that a second memory holds between steps, they are on the step's device, and
    they have bytes (what batch norm saves for its gradient in evaluation mode has none)."""
    problem, graph = lowered.problem, lowered.catalogue.graph
    placed = {t.id for t in problem.tensors} | lowered.carried | {i.id for i in problem.intermediates}
    outside = {graph.storage(n) for n in (*graph.outputs, *graph.gradients.values(), *graph.tangents) if n is not None}
    outside |= {graph.storage(source.value) for source in graph.sources}
    outside = (outside - lowered.leaving - lowered.carried) | lowered.elsewhere
    placed |= {graph.storage(n) for op in graph.backward for n in op.outputs if n is not None}
    values = lowered.catalogue.values
    return frozenset(storage for storage in placed - outside if values[storage].storage_bytes > 0)
