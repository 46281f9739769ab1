"""A plan as straight-line Python: one function for the forward pass, one for the backward pass.

Each step enters its place in the arena and calls its operator; views are rebuilt where they are
read; a buffer's variables are deleted right after the last step that uses it, which is when the
plan takes the memory back.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monet.errors import InvalidPlan, PlanMismatch
from monet.graph import Graph, Operator, Ref, operator_inputs
from monet.ops.catalogue import Catalogue
from monet.ops.offers.implementation import Guard, Implementation
from monet.plans.plan import Plan, PlanStep

# What tracebacks call the generated code.
FILE = "<monet plan>"


@dataclass(frozen=True)
class Generated:
    """``forward(enter, sources...)`` returns (outputs, activations); ``backward(enter, kept, activations,
    tangents)`` returns the gradients in the order of ``gradient_of``, and empties ``activations``.

    ``forward_sources``: values that forward takes, in order. ``kept``: sources and outputs that backward
    reads, in order. ``guards``: to check before a step.
    """

    source: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    forward_sources: tuple[str, ...]
    kept: tuple[str, ...]
    outputs: tuple[str, ...]
    gradient_of: tuple[str, ...]
    guards: tuple[Guard, ...]

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
    found = groups.get(step.kind, catalogue.backward).get(step.node, {}).get(step.implementation)
    if found is None:
        raise PlanMismatch(
            f"the plan runs {step.kind} {step.node} by {step.implementation!r}, which this model does not offer "
            "on this machine (another model, or native kernels that could not be built); plan again"
        )
    return found


@dataclass
class _Writer:
    catalogue: Catalogue
    plan: Plan
    views: Mapping[str, Operator]
    names: dict[str, Any] = field(default_factory=dict)  # global name → object
    lines: list[str] = field(default_factory=list)
    alive: dict[str, set[str]] = field(default_factory=dict)  # storage → values with a variable
    variables: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _calls: dict[Any, str] = field(default_factory=dict)

    def variable(self, value: str) -> str:
        if value not in self.variables:
            plain = "v_" + re.sub(r"\W", "_", value)
            name, n = plain, 1
            while name in self._taken:
                name, n = f"{plain}_{n}", n + 1
            self._taken.add(name)
            self.variables[value] = name
        return self.variables[value]

    def constant(self, thing: Any, hint: str) -> str:
        name = f"{hint}{len(self.names)}"
        self.names[name] = thing
        return name

    def callee(self, function: Any) -> str:
        if function not in self._calls:
            self._calls[function] = self.constant(function, "f_")
        return self._calls[function]

    def argument(self, argument: Any) -> str:
        if isinstance(argument, Ref):
            return self.variable(argument.name)
        if isinstance(argument, list | tuple):
            inner = ", ".join(self.argument(item) for item in argument)
            return f"[{inner}]"
        if argument is None or isinstance(argument, bool | int | str):
            return repr(argument)
        return self.constant(argument, "c_")  # floats too: inf and nan have no literal

    def call(self, function: Any, args: Any, kwargs: Any) -> str:
        parts = [self.argument(a) for a in args] + [f"{k}={self.argument(v)}" for k, v in kwargs]
        return f"{self.callee(function)}({', '.join(parts)})"

    def ensure(self, value: str) -> None:
        """Emit the views that lead to ``value``, unless it has a variable already."""
        storage = self.catalogue.storage(value)
        if value in self.alive.get(storage, ()):
            return
        view = self.views.get(value)
        if view is None:
            raise InvalidPlan(f"{value} is read where nothing has made it")
        for name in operator_inputs(view):
            self.ensure(name)
        if view.single:
            targets = [value]
            self.lines.append(f"{self.variable(value)} = {self.call(view.target, view.args, view.kwargs)}")
        else:
            targets = [n for n in view.outputs if n is not None]
            self._assign(view.outputs, self.call(view.target, view.args, view.kwargs))
        self.alive.setdefault(storage, set()).update(targets)

    def _assign(self, results: Sequence[str | None], call: str) -> None:
        """Several results; those that nobody reads are released at once."""
        left = ", ".join("_" if name is None else self.variable(name) for name in results)
        self.lines.append(f"{left}, = {call}")
        if None in results:
            self.lines.append("del _")

    def born(self, value: str) -> None:
        self.alive[self.catalogue.storage(value)] = {value}

    def release(self, storages: list[str]) -> None:
        gone = sorted(self.variable(v) for storage in storages for v in self.alive.pop(storage, ()))
        if gone:
            self.lines.append(f"del {', '.join(gone)}")

    def step(self, index: int, step: PlanStep, implementation: Implementation) -> None:
        for name in implementation.inputs():
            self.ensure(name)
        self.lines.append(f"enter(handle, {index})")
        right = self.call(implementation.call, implementation.args, implementation.kwargs)
        results = implementation.outputs
        if implementation.overwrites is not None:
            # The old content is gone: its variables go too, before the storage can be made anew.
            old = self.catalogue.storage(implementation.overwrites)
            stale = self.alive.pop(old, set())
        else:
            stale = set()
        if not any(results):
            self.lines.append(right)
        elif implementation.single:
            self.lines.append(f"{self.variable(results[0])} = {right}")  # type: ignore[arg-type]
        else:
            self._assign(results, right)
        for result in results:
            if result is not None:
                self.born(result)
        if stale:
            self.lines.append(f"del {', '.join(sorted(self.variable(v) for v in stale))}")


def generate(plan: Plan, catalogue: Catalogue) -> Generated:
    """Compile a verified plan against the graph it was made from."""
    graph = catalogue.graph
    views = {name: op for op in (*graph.forward, *graph.backward) if op.view for name in op.outputs if name is not None}
    steps = [(i, step, implementation_of(step, catalogue)) for i, step in enumerate(plan.steps)]
    border = len(steps)
    if any(graph.tangents):  # else the loss and the updates are inside, and one function is the whole step
        border = next((i for i, step, _ in steps if step.kind != "forward"), len(steps))
    dying: dict[int, set[str]] = {}  # step → storages whose buffer is not used after it
    content: dict[int, str] = {}
    by_id = {buffer.id: buffer for buffer in plan.buffers}
    for i, step, _ in steps:
        content.update({buffer: storage for storage, buffer in step.writes.items()})
        for buffer in {*step.reads.values(), *step.writes.values()}:
            if by_id[buffer].last == i:
                dying.setdefault(i, set()).add(content[buffer])

    writer = _Writer(catalogue, plan, views)
    sources = tuple(source.value for source in graph.sources)
    tied = {source.value: graph.storage(source.value) for source in graph.sources}
    outputs = tuple(dict.fromkeys(n for n in graph.outputs if n is not None))

    def define(values: tuple[str, ...]) -> None:
        for value in values:
            writer.alive.setdefault(catalogue.storage(value), set()).add(value)

    define(sources)
    for i, step, implementation in steps[:border]:
        writer.step(i, step, implementation)
        writer.release(sorted(dying.get(i, ())))
    for name in outputs:
        writer.ensure(name)
    outside = {*tied.values(), *(graph.storage(n) for n in outputs)}
    held = sorted(s for s in writer.alive if s not in outside)
    activations = [v for s in held for v in sorted(writer.alive[s])]
    used = _read_outside(graph, steps[border:], outside, views)
    kept = tuple(v for v in dict.fromkeys([*sources, *outputs]) if v in used)
    # Values that share an output's memory; the output itself is autograd's to keep, or it would hold itself.
    of_outputs = {graph.storage(n) for n in outputs} - {*tied.values()}
    beside = tuple(sorted(v for s in of_outputs for v in writer.alive.get(s, ()) if v in used and v not in kept))
    activations += beside
    forward_lines, writer.lines = writer.lines, []

    tangents = tuple(n for n in graph.tangents if n is not None)
    writer.alive = {s: alive for s, alive in writer.alive.items() if s not in outside}
    define(kept)
    define(beside)
    define(tangents)
    for i, step, implementation in steps[border:]:
        writer.step(i, step, implementation)
        writer.release(sorted(dying.get(i, ())))
    gradient_of = tuple(graph.gradients)
    for value in graph.gradients.values():
        writer.ensure(value)
    text = _assemble(writer, sources, forward_lines, outputs, activations, kept, tangents, [*graph.gradients.values()])
    namespace: dict[str, Any] = dict(writer.names)
    exec(compile(text, FILE, "exec"), namespace)
    return Generated(
        source=text,
        forward=namespace["forward"],
        backward=namespace["backward"],
        forward_sources=sources,
        kept=kept,
        outputs=outputs,
        gradient_of=gradient_of,
        guards=tuple(sorted({i.guard for _, _, i in steps if i.guard is not None}, key=str)),
    )


def _read_outside(
    graph: Graph, steps: list[tuple[int, PlanStep, Implementation]], outside: set[str], views: Mapping[str, Operator]
) -> set[str]:
    """Sources and outputs that these steps (or the gradients themselves) read, directly or through views."""
    used: set[str] = set()

    def visit(name: str) -> None:
        if name in views and graph.values[name].storage in outside:
            for parent in operator_inputs(views[name]):
                visit(parent)
        used.add(name)

    for _, _, implementation in steps:
        for name in implementation.inputs():
            if name in graph.values:
                visit(name)
    for name in graph.gradients.values():
        visit(name)
    return used


def _assemble(
    writer: _Writer,
    sources: tuple[str, ...],
    forward_lines: list[str],
    outputs: tuple[str, ...],
    activations: list[str],
    kept: tuple[str, ...],
    tangents: tuple[str, ...],
    gradients: list[str],
) -> str:
    def names(values: list[str] | tuple[str, ...]) -> str:
        return ", ".join(writer.variable(v) for v in values) + ("," if values else "")

    text = ["def forward(enter, handle, sources):"]
    if sources:
        text.append(f"    {names(sources)} = sources")
    text += [f"    {line}" for line in forward_lines]
    text.append(f"    return ({names(outputs)}), [{names(activations)}]")
    text.append("def backward(enter, handle, kept, activations, tangents):")
    for values, argument in ((kept, "kept"), (tuple(activations), "activations"), (tangents, "tangents")):
        if values:
            text.append(f"    {names(values)} = {argument}")
    text.append("    activations.clear()")
    text += [f"    {line}" for line in writer.lines]
    text.append(f"    return ({names(gradients)})")
    return "\n".join(text) + "\n"
