"""From a graph and its profile to the planner's ``Problem``.

The planner thinks in storages: a value and its views are one tensor. What is in memory during the
whole step (parameters, buffers, inputs, outputs, gradients) is ``fixed`` and no tensor of the problem.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from monet.base.graph import BUFFER, CONSTANT, INPUT, PARAMETER, STATE, TOTAL, Graph, Operator, operator_inputs
from monet.base.measurement import Measurement
from monet.ops.catalogue import Catalogue
from monet.ops.fusion.offers import is_compiled
from monet.ops.kinds import kind
from monet.ops.measuring.profiling import Profile, implementations
from monet.ops.offers.implementation import Implementation
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.program.index import by_last
from monet.plans.format import ALIGNMENT, FREED, aligned

# Tensors under the first share of all activations are always kept, the smallest first, as long as all of these are
# under the second: the program is smaller, and no plan needs more than that for it. A network of thousands of small
# tensors has no others.
PINNED_SHARE = 1 / (1 << 14)
PINNED_TOGETHER = 1 / (1 << 8)


@dataclass(frozen=True)
class Lowered:
    """``recompute_name[operator][name]``: the catalogue's recompute implementation that the
    problem's implementation ``name`` stands for. ``fixed``: bytes by kind. ``leaving``: storages of gradients that have
    a place in the arena from when they are made, and outlive the step. ``elsewhere``: storages that the step makes on
    another device than its own, of which the planner knows nothing. ``eager``: as in ``lower``. ``carried``: storages
    of parameters and of an optimiser's state that are in the second memory between steps."""

    problem: Problem
    catalogue: Catalogue
    profile: Profile
    recompute_name: Mapping[str, Mapping[str, str]]
    fixed: Mapping[str, int]
    leaving: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    eager: bool = False
    carried: frozenset[str] = frozenset()

    @cached_property
    def digest(self) -> str:
        """Of what a plan depends on: the problem, the measurements, and what is carried. A thousand operators take some
        .05 s, and a search wants it several times."""
        profile = self.profile
        measured = sorted(profile.measurements.items(), key=lambda item: item[0])  # the cache has another order
        parts = (self.problem, profile.environment, measured, sorted(self.carried))
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _leaving(graph: Graph) -> frozenset[str]:
    """Storages of gradients that an operator of the backward pass makes, and that are nothing else besides."""
    made = {graph.storage(n) for op in graph.backward if not op.view for n in op.outputs if n is not None}
    others = {graph.storage(source.value) for source in graph.sources}
    others |= {graph.storage(n) for n in (*graph.outputs, *graph.tangents) if n is not None}
    found = {graph.storage(n) for n in graph.gradients.values()} & made - others
    return frozenset(storage for storage in found if graph.values[storage].storage_bytes > 0)


class _Costs:
    """What was measured of all that a catalogue offers, each looked up once: to write a signature takes long."""

    def __init__(self, catalogue: Catalogue, profile: Profile) -> None:
        self._found = {id(run): profile.of(run, catalogue) for run in implementations(catalogue)}

    def of(self, run: Implementation) -> Measurement:
        return self._found[id(run)]


class _Storages:
    """Which storages are whose. ``leaving``: as in ``Lowered``."""

    def __init__(self, catalogue: Catalogue, costs: _Costs, leaving: frozenset[str]) -> None:
        graph = catalogue.graph
        self.catalogue = catalogue
        self.asked = _asked_bytes(catalogue, costs)
        self.outputs = {graph.storage(n) for n in graph.outputs if n is not None}
        self.leaving = leaving
        self.gradients = {graph.storage(n) for n in graph.gradients.values()} - leaving
        self.outside = {graph.storage(source.value) for source in graph.sources} | {
            n for n in graph.tangents if n is not None
        }
        self.elsewhere = _elsewhere(catalogue, self.asked)
        self.outside |= self.outputs | self.gradients | self.elsewhere
        self.backward = {graph.storage(n) for op in graph.backward for n in op.outputs if n is not None}

    def of(self, names: Sequence[str | None]) -> tuple[str, ...]:
        """Storages of these values that a plan places, without repetition."""
        found = (self.catalogue.storage(n) for n in names if n is not None)
        return tuple(dict.fromkeys(s for s in found if s not in self.outside))

    def bytes(self, storage: str) -> int:
        return aligned(max(self.catalogue.values[storage].storage_bytes, self.asked.get(storage, 0)))


def _asked_bytes(catalogue: Catalogue, costs: _Costs) -> dict[str, int]:
    """Storage → the most bytes that an operator which makes it asks for. That may be more than its shape tells: the
    mean of a loss can come in the memory of all its terms."""
    found: dict[str, int] = {}
    for implementation in implementations(catalogue):
        for request in costs.of(implementation).requests:
            name = implementation.outputs[request.output] if request.output is not None else None
            if name is not None:
                storage = catalogue.storage(name)
                found[storage] = max(found.get(storage, 0), request.bytes)
    return found


def _elsewhere(catalogue: Catalogue, asked: Container[str]) -> frozenset[str]:
    """Storages that operators make and never ask the step's device for (``asked``, as ``_asked_bytes`` has it): a GPU's
    operators return the state of its generator, and the seeds of an attention's dropout, in memory of the CPU."""
    made = {
        catalogue.storage(name)
        for run in implementations(catalogue)
        for position, name in enumerate(run.outputs)
        if name is not None and not (run.overwrites is not None and position == 0)
    }
    return frozenset(name for name in made if name not in asked and catalogue.values[name].storage_bytes > 0)


def fixed_bytes(
    graph: Graph,
    beside: Mapping[str, int] | None = None,
    asked: Mapping[str, int] | None = None,
    leaving: frozenset[str] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
) -> dict[str, int]:
    """Bytes, by kind, that the step holds from its beginning or leaves behind at its end.

    ``output_gradients``: what arrives from the loss. Exact sizes: these are not in the arena. ``asked``: bytes that
    operators ask for, where they are known. ``leaving``: gradients that are in the arena, and not among these.
    ``elsewhere``: as in ``Lowered``; what the caller holds on another device counts neither (a GPU's step may read
    scalars of the CPU, as Adam's number of steps).
    ``beside``: by kind, what is no part of the graph; None: nothing is reserved.
    """
    asked, kind_of_device = asked or {}, graph.device.type

    def total(names: Sequence[str | None]) -> int:
        storages = {graph.storage(n) for n in names if n is not None}
        here = [s for s in storages if s not in elsewhere and graph.values[s].device.type == kind_of_device]
        return sum(max(graph.values[s].storage_bytes, asked.get(s, 0)) for s in here)

    of_kind = {
        kind: total([s.value for s in graph.sources if s.kind == kind])
        for kind in (PARAMETER, BUFFER, CONSTANT, INPUT, STATE)
    }
    tangents = {n for n in graph.tangents if n is not None}
    gradients = [n for n in graph.gradients.values() if graph.storage(n) not in tangents | leaving]
    return {
        "parameters": of_kind[PARAMETER],
        "buffers": of_kind[BUFFER] + of_kind[CONSTANT],
        "inputs": of_kind[INPUT],
        "outputs": total(graph.outputs),
        "output_gradients": total(graph.tangents),
        "gradients": total([*gradients, *(s.value for s in graph.sources if s.kind == TOTAL)]),
        **({"optimizer_state": of_kind[STATE]} if of_kind[STATE] else {}),
        **({"reserve": 0} if beside is None else beside),
    }


def _small(sizes: Mapping[str, int]) -> frozenset[str]:
    """Storages that are not worth a decision."""
    total = sum(sizes.values())
    smallest = sorted(sizes, key=lambda storage: (sizes[storage], storage))
    together = accumulate(sizes[storage] for storage in smallest)
    return frozenset(
        storage
        for storage, so_far in zip(smallest, together, strict=True)
        if sizes[storage] < total * PINNED_SHARE and so_far <= total * PINNED_TOGETHER
    )


def lower(
    catalogue: Catalogue,
    profile: Profile,
    *,
    name: str,
    beside: Mapping[str, int] | None = None,
    gradients: str = FREED,
    eager: bool = False,
) -> Lowered:
    """The problem of one training step.

    ``beside``: as in ``fixed_bytes``. ``gradients``: ``FREED`` gives them places in the arena, from when they are made;
    ``KEPT`` counts them throughout. ``eager``: the step as PyTorch's autograd runs it, which also keeps inputs of which
    only the shape matters: to count what eager needs, not to plan.
    """
    graph = catalogue.graph
    leaving = _leaving(graph) if gradients == FREED else frozenset[str]()
    costs = _Costs(catalogue, profile)
    storages = _Storages(catalogue, costs, leaving)
    fixed = fixed_bytes(graph, beside, storages.asked, leaving, storages.elsewhere)
    recompute_name: dict[str, Mapping[str, str]] = {}
    forward: list[ForwardOperator] = []
    intermediates: list[Intermediate] = []
    made: dict[str, bool] = {}  # storage → recomputable
    for op in graph.forward:
        if op.view:
            continue
        operator, names = _forward(op, catalogue, costs, storages, eager)
        recompute_name[op.name] = names
        forward.append(operator)
        made.update({storage: operator.recomputable for storage in operator.outputs})
        for saved in catalogue.intermediates.get(op.name, ()):
            measured = costs.of(saved.implementation)
            reads = storages.of(saved.implementation.inputs())
            intermediates.append(
                Intermediate(
                    saved.value.name,
                    aligned(saved.value.storage_bytes),
                    op.name,
                    reads,
                    measured.time_s,
                    _workspace_bytes(saved.implementation, measured, storages),
                    saved.kind,
                )
            )
    sizes = {storage: storages.bytes(storage) for storage in made}
    small = _small(sizes)
    tensors = tuple(Tensor(s, size, pinned=not made[s] or s in small) for s, size in sizes.items())
    problem = Problem(
        name=name,
        tensors=tensors,
        forward=tuple(forward),
        intermediates=tuple(intermediates),
        backward=_backward(catalogue, costs, storages, eager),
        fixed_bytes=sum(fixed.values()),
    )
    return Lowered(problem, catalogue, profile, recompute_name, fixed, leaving, storages.elsewhere, eager)


def _workspace_bytes(run: Implementation, measured: Measurement, storages: _Storages) -> int:
    """As the arena will have it: an output that is not placed, as a parameter's gradient, is among the fixed bytes from
    the beginning, also where the operator asks for it only once its temporaries are gone."""
    outside = {position for position, name in enumerate(run.outputs) if not storages.of([name])}
    return measured.workspace_bytes(outside, ALIGNMENT)


def _seconds(run: Implementation, measured: Measurement, exact_s: float) -> float:
    """``exact_s``: seconds of the operator's fastest exact implementation. One that is not exact is
    chosen for the memory it saves, never for speed, which may be noise; but for kernels of a compiler, which were asked
    for."""
    return measured.time_s if run.exact or is_compiled(run) else max(measured.time_s, exact_s * (1 + 1e-6))


def _offered(runs: Mapping[str, Implementation], eager: bool) -> list[Implementation]:
    """The default first, for a count of ``eager``'s step its own."""
    return sorted(runs.values(), key=lambda run: not (eager and run.eagers))


def _forward(
    op: Operator, catalogue: Catalogue, costs: _Costs, storages: _Storages, eager: bool
) -> tuple[ForwardOperator, dict[str, str]]:
    """A forward operator and how its implementations are called when it runs again."""
    runs = _offered(catalogue.forward[op.name], eager)
    again = catalogue.recompute.get(op.name, {})
    outputs = [*op.outputs]
    for run in runs:
        outputs += [n for n in run.outputs if n not in outputs]
    made = storages.of(outputs)
    offered: list[ForwardImplementation] = []
    names: dict[str, str] = {}
    fallback = min(again.values(), key=lambda i: costs.of(i).time_s, default=None)
    exact_s = min((costs.of(run).time_s for run in runs if run.exact), default=0.0)
    for run in runs:
        repeat = again.get(run.name, fallback)
        measured = costs.of(run)
        overwritten = storages.of([run.overwrites])
        reads: tuple[str, ...] = ()
        if repeat is not None:
            names[run.name] = repeat.name
            inputs = storages.of(run.inputs())
            reads = tuple(s for s in storages.of(repeat.inputs()) if s not in inputs)
        repeated = costs.of(repeat) if repeat is not None else None
        offered.append(
            ForwardImplementation(
                name=run.name,
                time_s=_seconds(run, measured, exact_s),
                workspace_bytes=_workspace_bytes(run, measured, storages),
                overwrites=overwritten[0] if overwritten else None,
                aliased_bytes=storages.bytes(overwritten[0]) if overwritten else 0,
                recompute_time_s=repeated.time_s if repeated is not None else None,
                recompute_workspace_bytes=None
                if repeated is None or repeat is None
                else _workspace_bytes(repeat, repeated, storages),
                recompute_reads=reads,
            )
        )
    operator = ForwardOperator(
        id=op.name,
        inputs=storages.of(operator_inputs(op)),
        outputs=made,
        implementations=tuple(offered),
        recomputable=bool(again) and bool(made),
        kind=kind(op),
    )
    return operator, names


def _backward(catalogue: Catalogue, costs: _Costs, storages: _Storages, eager: bool) -> tuple[BackwardOperator, ...]:
    """Backward operators in order, with the bytes of backward values alive around each."""
    operators = [op for op in catalogue.graph.backward if not op.view]
    last: dict[str, int] = {}
    for position, op in enumerate(operators):
        for storage in (*storages.of(operator_inputs(op)), *storages.of(op.outputs)):
            last[storage] = position
    last.update(dict.fromkeys(storages.leaving, len(operators)))
    ends = by_last(last)
    alive: dict[str, int] = {}
    alive_bytes = 0
    found: list[BackwardOperator] = []
    for position, op in enumerate(operators):
        before_bytes = alive_bytes
        for storage in storages.of(op.outputs):
            alive_bytes += storages.bytes(storage) - alive.get(storage, 0)
            alive[storage] = storages.bytes(storage)
        runs = _offered(catalogue.backward[op.name], eager)
        exact_s = min((costs.of(run).time_s for run in runs if run.exact), default=0.0)
        offered = [_backward_choice(run, costs, storages, exact_s, eager) for run in runs]
        found.append(BackwardOperator(op.name, tuple(offered), before_bytes, alive_bytes))
        alive_bytes -= sum(alive.pop(storage, 0) for storage in ends.get(position, ()))
    return tuple(found)


def _backward_choice(
    run: Implementation, costs: _Costs, storages: _Storages, exact_s: float, eager: bool
) -> BackwardImplementation:
    measured = costs.of(run)
    # What keeps its storage, as a sum that grows, counts once anyway.
    made = storages.of(run.outputs)
    overwritten = tuple(s for s in storages.of([run.overwrites]) if s not in made)
    read = storages.of((*run.inputs(), *run.holds) if eager else run.inputs())
    return BackwardImplementation(
        name=run.name,
        time_s=_seconds(run, measured, exact_s),
        reads=tuple(s for s in read if s not in storages.backward),
        workspace_bytes=_workspace_bytes(run, measured, storages),
        aliased_bytes=storages.bytes(overwritten[0]) if overwritten else 0,
    )
