"""A plan as straight-line Python: one function for the forward pass, one for the backward pass.

lifetimes → forward → handover → backward (in parts) → assemble → compile

Each step enters its place in the arena and calls its operator. Views are rebuilt where they are
read. A buffer's variables are deleted right after the last step that uses it, which is when the
plan takes the memory back.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from monet.base.graph import Graph, Operator, operator_inputs
from monet.errors import InvalidPlan, PlanMismatch
from monet.executor.copying.copies import Copies
from monet.executor.gradient_parts import Part, gradient_parts
from monet.executor.places import Places
from monet.executor.step_writer import CopyStep, StepWriter
from monet.executor.varying import Varying
from monet.ops.catalogue import Catalogue
from monet.ops.fusion.compiling_ahead import compile_all
from monet.ops.fusion.offers import kernels
from monet.ops.offers.implementation import Guard, Implementation
from monet.plans.format import READ, WAIT, WRITE, PlanStep
from monet.plans.plan import Plan
from monet.step.islands import IslandCalls

# What tracebacks call the generated code.
FILE = "<monet plan>"


@dataclass(frozen=True)
class Generated:
    """``forward(enter, sources...)`` returns (outputs, activations); ``backward(enter, kept, activations,
    tangents)`` returns the gradients in the order of ``gradient_of``, and empties ``activations``.

    ``forward_sources``: values that forward takes, in order. ``kept``: sources and outputs that backward
    reads, in order. ``guards``: to check before a step. ``parts``: where there are any, ``backward`` is a generator
    instead, of a list for each part: the gradients of these sources. Whoever takes them out of the list owns them.
    """

    source: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    forward_sources: tuple[str, ...]
    kept: tuple[str, ...]
    outputs: tuple[str, ...]
    gradient_of: tuple[str, ...]
    guards: tuple[Guard, ...]
    parts: tuple[tuple[str, ...], ...] = ()

    def step_of(self, error: BaseException) -> int | None:
        """The step that raised ``error``: the last that was entered above the line where it left the generated code."""
        lines = [at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == FILE]
        if not lines:
            return None
        entered = re.findall(
            r"^ +enter\(handle, (\d+)\)$", "\n".join(self.source.split("\n")[: lines[-1]]), re.MULTILINE
        )
        return int(entered[-1]) if entered else None


def implementation_of(step: PlanStep, catalogue: Catalogue) -> Implementation:
    """The implementation that a step names. Raises ``PlanMismatch`` where this graph or machine has none such."""
    for saved in (s for group in catalogue.intermediates.values() for s in group):
        if saved.value.name == step.node:
            if saved.implementation.name != step.implementation:
                break
            return saved.implementation
    groups = {"forward": catalogue.forward, "recompute": catalogue.recompute}
    implementation = groups.get(step.kind, catalogue.backward).get(step.node, {}).get(step.implementation)
    if implementation is None:
        raise PlanMismatch(
            f"the plan runs {step.kind} {step.node} by {step.implementation!r}, which this model does not offer "
            "on this machine (another model, or native kernels that could not be built); plan again"
        )
    return implementation


def generate(
    plan: Plan,
    catalogue: Catalogue,
    copies: Copies | None = None,
    part_bytes: Sequence[int] = (),
    varying: Varying | None = None,
    places: Places | None = None,
    islands: IslandCalls | None = None,
) -> Generated:
    """Compile a verified plan against the graph it was made from; ``copies``: what its copies go through; ``varying``:
    where sizes vary, what they are in a call; ``places``: where results are to be looked for; ``islands``:
    what runs in place of parts of the model that run as they are.

    ``part_bytes``: the backward pass in parts of so many bytes of gradients, as ``gradient_parts`` takes it.

    Raises ``PlanMismatch`` as ``implementation_of`` does, and ``InvalidPlan`` where a step reads what nothing has made,
    or where an operator is not run as often as a step runs it.
    """
    graph = catalogue.graph
    _check_complete(plan, graph)
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    steps: list[CopyStep | Implementation] = []
    for step in plan.steps:
        copy = _copy_of(step, sizes, catalogue)
        if copy is not None:
            steps.append(copy)
            continue
        run = implementation_of(step, catalogue)
        steps.append(run if islands is None else islands.bound(run, step.node))
    implementations = [step for step in steps if isinstance(step, Implementation)]
    compile_all(k for implementation in implementations for k in kernels(implementation, catalogue.values))
    border = _border(plan, graph)
    writer = StepWriter(catalogue, _views(graph), _dying_storages(plan, catalogue), copies, varying, places)
    forward = _forward(writer, graph, steps[:border])
    later = [step for step in steps[border:] if isinstance(step, Implementation)]
    handover = _hand_over(writer, graph, later)
    parts = gradient_parts(catalogue, steps, border, part_bytes) if part_bytes else ()
    backward = _backward(writer, graph, steps, border, handover, parts)
    source = _assemble(writer, graph, forward, backward, handover)
    functions = _compiled(source, writer.names)
    return Generated(
        source=source,
        forward=functions["forward"],
        backward=functions["backward"],
        forward_sources=_sources(graph),
        kept=handover.kept,
        outputs=_outputs(graph),
        gradient_of=tuple(graph.gradients),
        guards=tuple(sorted({i.guard for i in implementations if i.guard is not None}, key=str)),
        parts=tuple(part.sources for part in parts),
    )


def _check_complete(plan: Plan, graph: Graph) -> None:
    """Each operator is run once, but for what runs again in the backward pass: an operator may have effects that no
    step's reads and writes tell of."""
    passes = {"forward": graph.forward, "backward": graph.backward}
    for name, operators in passes.items():
        due = [op.name for op in operators if not op.view]
        kinds = ("forward",) if name == "forward" else ("backward", "update")
        run = Counter(step.node for step in plan.steps if step.kind in kinds)
        for node in due:
            if run[node] != 1:
                raise InvalidPlan(
                    f"{name} operator {node} is run {run[node]} times, and a step runs it once; plan again"
                )


def _storage_of(content: str, catalogue: Catalogue) -> str:
    """The storage of a content that a plan names: one that has changed in place has a number behind its name."""
    return content if content in catalogue.values else content.rpartition("+")[0]


def _copy_of(step: PlanStep, sizes: Mapping[int, int], catalogue: Catalogue) -> CopyStep | None:
    """The copy that a step issues or waits for; None where it runs an operator."""
    if step.kind not in (WRITE, READ, WAIT) or step.place is None:
        return None
    buffer = next(id for id in (*step.reads.values(), *step.writes.values(), *step.requests) if id is not None)
    storage = _storage_of(step.node, catalogue)
    if storage not in catalogue.values:
        raise PlanMismatch(f"the plan copies {step.node}, which this model does not have; plan again")
    return CopyStep(step.kind, storage, step.place, sizes[buffer], bool(step.writes))


def _sources(graph: Graph) -> tuple[str, ...]:
    return tuple(source.value for source in graph.sources)


def _outputs(graph: Graph) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in graph.outputs if name is not None))


def _tangents(graph: Graph) -> tuple[str, ...]:
    return tuple(name for name in graph.tangents if name is not None)


def _views(graph: Graph) -> dict[str, Operator]:
    """Value → the view operator that makes it."""
    return {name: op for op in (*graph.forward, *graph.backward) if op.view for name in op.outputs if name is not None}


def _border(plan: Plan, graph: Graph) -> int:
    """The first step of the backward function. A step whose loss and updates are inside is one function as a whole."""
    steps = range(len(plan.steps))
    if not any(graph.tangents):
        return len(steps)
    return next((i for i in steps if not _is_forward(plan.steps[i])), len(steps))


def _is_forward(step: PlanStep) -> bool:
    """Of the forward pass: also a write to the second memory and the wait for it, which reads what is written."""
    return step.kind in ("forward", WRITE) or (step.kind == WAIT and bool(step.reads))


def _dying_storages(plan: Plan, catalogue: Catalogue) -> dict[int, set[str]]:
    """Step → storages whose buffer is not used after it, by the step or whoever it leaves it to."""
    dying: dict[int, set[str]] = {}
    content: dict[int, str] = {}  # buffer → the storage that it holds
    last = {buffer.id: None if buffer.leaves else buffer.last for buffer in plan.buffers}
    for i, step in enumerate(plan.steps):
        content.update({buffer: _storage_of(name, catalogue) for name, buffer in step.writes.items()})
        for buffer in {*step.reads.values(), *step.writes.values()}:
            if last[buffer] == i:
                dying.setdefault(i, set()).add(content[buffer])
    return dying


@dataclass(frozen=True, slots=True)
class _Handover:
    """Values that the backward function gets from the forward function.

    ``kept``: sources and outputs that it reads, for autograd to keep. ``activations``: all others.
    ``beside``: those of the activations that share an output's memory. The output itself is autograd's to keep, or it
    would hold itself. ``outside``: storages of sources and outputs.
    """

    kept: tuple[str, ...]
    activations: tuple[str, ...]
    beside: tuple[str, ...]
    outside: frozenset[str]


def _forward(writer: StepWriter, graph: Graph, steps: Sequence[Implementation | CopyStep]) -> tuple[str, ...]:
    """The forward function's body: its steps, then the views that outputs are."""
    writer.define(_sources(graph))
    for i, step in enumerate(steps):
        writer.step(i, step)
    for name in _outputs(graph):
        writer.ensure(name)
    return writer.taken_lines()


def _hand_over(writer: StepWriter, graph: Graph, backward: Sequence[Implementation]) -> _Handover:
    """What the backward steps get of the values that have a variable at the forward function's end."""
    sources, outputs = _sources(graph), _outputs(graph)
    of_sources = {graph.storage(name) for name in sources}
    of_outputs = {graph.storage(name) for name in outputs} - of_sources
    outside = frozenset(of_sources | of_outputs)
    used = _read_outside(graph, backward, outside, writer.views)
    kept = tuple(v for v in dict.fromkeys([*sources, *outputs]) if v in used)
    beside = tuple(sorted(v for s in of_outputs for v in writer.alive.get(s, ()) if v in used and v not in kept))
    inside = sorted(s for s in writer.alive if s not in outside)
    activations = [v for s in inside for v in sorted(writer.alive[s])]
    return _Handover(kept, (*activations, *beside), beside, outside)


def _backward(
    writer: StepWriter,
    graph: Graph,
    steps: Sequence[Implementation | CopyStep],
    border: int,
    handover: _Handover,
    parts: Sequence[Part],
) -> tuple[str, ...]:
    """The backward function's body: its steps, then the views that gradients are and what hands them over, or both
    after the last step of each part."""
    writer.alive = {s: alive for s, alive in writer.alive.items() if s not in handover.outside}
    writer.define((*handover.kept, *handover.beside, *_tangents(graph)))
    values = list(graph.gradients.values())
    ending = {part.last: [graph.gradients[source] for source in part.sources] for part in parts}
    for i in range(border - 1, len(steps)):
        if i >= border:
            writer.step(i, steps[i])
        if i in ending:
            writer.hand_out(ending[i])
    if not parts:
        for value in values:
            writer.ensure(value)
        writer.lines.append(f"return ({', '.join(map(writer.variable, values))}{',' if values else ''})")
    return writer.taken_lines()


def _read_outside(
    graph: Graph, implementations: Sequence[Implementation], outside: Set[str], views: Mapping[str, Operator]
) -> set[str]:
    """Sources and outputs that these (or the gradients themselves) read, directly or through views."""
    used: set[str] = set()

    def visit(name: str) -> None:
        if name in views and graph.values[name].storage in outside:
            for parent in operator_inputs(views[name]):
                visit(parent)
        used.add(name)

    for implementation in implementations:
        for name in implementation.inputs():
            if name in graph.values:
                visit(name)
    for name in graph.gradients.values():
        visit(name)
    return used


def _assemble(
    writer: StepWriter, graph: Graph, forward: Sequence[str], backward: Sequence[str], handover: _Handover
) -> str:
    """The source of both functions; ``forward``, ``backward``: their bodies."""

    def names(values: Collection[str]) -> str:
        return ", ".join(writer.variable(value) for value in values) + ("," if values else "")

    def unpacked(values: Sequence[str], argument: str) -> list[str]:
        return [f"    {names(values)} = {argument}"] if values else []

    text = [
        "def forward(enter, handle, sources):",
        *unpacked(_sources(graph), "sources"),
        *(f"    {line}" for line in forward),
        f"    return ({names(_outputs(graph))}), [{names(handover.activations)}]",
        "def backward(enter, handle, kept, activations, tangents):",
        *unpacked(handover.kept, "kept"),
        *unpacked(handover.activations, "activations"),
        *unpacked(_tangents(graph), "tangents"),
        "    activations.clear()",
        "    del kept, tangents",
        *(f"    {line}" for line in backward),
    ]
    return "\n".join(text) + "\n"


def _compiled(source: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """The functions that the source defines, by name; ``names``: its globals."""
    namespace = dict(names)
    exec(compile(source, FILE, "exec"), namespace)
    return namespace
