"""From a captured graph to a whole training step to order: forward, backward, and every parameter's update.

A node is one aten operator. Sizes are rounded up to ``ALIGNMENT``, as the layout places them, so that an order's peak
is the least arena that its lifetimes could have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monet.base.graph import PARAMETER, Graph, Operator, Source, Value, operator_inputs, overwritten
from monet.planner.order.graph import Node, OrderGraph
from monet.plans.format import aligned
from monet.step.training_step.optimizer_trace import (
    GRADIENT_STORAGE,
    PARAMETER_STORAGE,
    OptimizerFactory,
    Update,
    trace_update,
)

GENERATOR = "random generator"


def step_graph(graph: Graph, optimizer: OptimizerFactory | None = None) -> OrderGraph:
    """The nodes and storages of a training step, in program order: a gradient dies when its update has read it.

    The graph is given its sources (parameters, buffers, constants, inputs), the gradients of its outputs and the
    optimiser's state: none of it is counted. Left at the end, and counted: the module's outputs, the gradients of its
    inputs, and without an ``optimizer`` those of its parameters. ``optimizer`` is called with one parameter at a time,
    without contents: ``functools.partial(torch.optim.Adam, lr=1e-3)``, say.

    Random operators overwrite the generator, a storage of no bytes, so that they keep their order.

    What this leaves out: workspaces, which fake tensors do not tell, and results of operators that nobody reads. The
    graph is the canonical one: functional where eager may work in place (a ReLU), with the gradients of a convolution
    apart, and with no copy of a gradient that shares memory with another.

    Raises ``CaptureError``: the optimiser's update cannot be traced.
    """
    return _Assembly(graph, optimizer).order_graph()


class _Assembly:
    """Numbers the storages of a step and lists its nodes: the graph's operators, then the updates' calls."""

    def __init__(self, graph: Graph, optimizer: OptimizerFactory | None) -> None:
        self.graph = graph
        self.numbers: dict[str, int] = {}
        self.bytes: dict[int, int] = {}
        self.nodes: list[Node] = []
        self.inputs: set[int] = set(self._storages([s.value for s in graph.sources]))
        self.inputs.update(self._storages(graph.tangents))
        outputs = set(self._storages(graph.outputs))
        for op in (*graph.forward, *graph.backward):
            self._add(op)
        trained: set[str] = set()
        if optimizer is not None:
            parameters = [s for s in graph.sources if s.kind == PARAMETER and s.value in graph.gradients]
            trained.update(s.value for s in parameters)
            self._update(parameters, optimizer)
        outputs.update(self._storages([g for value, g in graph.gradients.items() if value not in trained]))
        self.outputs = frozenset(outputs - self.inputs)

    def order_graph(self) -> OrderGraph:
        return OrderGraph(tuple(self.nodes), self.bytes, frozenset(self.inputs), self.outputs)

    def _number(self, storage: str) -> int:
        return self.numbers.setdefault(storage, len(self.numbers))

    def _storages(self, names: Iterable[str | None]) -> tuple[int, ...]:
        numbers = (self._number(self.graph.storage(name)) for name in names if name is not None)
        return tuple(dict.fromkeys(numbers))

    def _add(self, op: Operator) -> None:
        changed = self._storages(overwritten(op))
        if op.random:
            self.inputs.add(self._number(GENERATOR))
            changed = (*changed, self._number(GENERATOR))
        reads = tuple(n for n in self._storages(operator_inputs(op)) if n not in changed)
        makes: tuple[int, ...] = ()
        if not op.view:
            makes = tuple(n for n in self._storages(op.outputs) if n not in changed)  # a sum may grow where it is
            for name in op.outputs:
                if name is not None:
                    self.bytes[self._number(self.graph.storage(name))] = aligned(self.graph.values[name].storage_bytes)
        self.nodes.append(Node(op.name, reads, makes, changed, view=op.view))

    def _update(self, parameters: list[Source], optimizer: OptimizerFactory) -> None:
        values = self.graph.values
        traces: dict[Any, Update] = {}  # by geometry: an update depends on nothing else of the parameter
        for source in parameters:
            parameter, gradient = values[source.value], values[self.graph.gradients[source.value]]
            key = (_geometry(parameter), _geometry(gradient))
            if key not in traces:
                traces[key] = trace_update(optimizer, parameter, gradient)
            self._append(source.target, parameter, gradient, traces[key])

    def _append(self, name: str, parameter: Value, gradient: Value, update: Update) -> None:
        """The update's calls with the parameter's storages in place of the trace's numbers."""
        number = {PARAMETER_STORAGE: self._number(parameter.storage), GRADIENT_STORAGE: self._number(gradient.storage)}
        for n in update.bytes:
            if n not in number:
                number[n] = self._number(f"storage {n} of the update of {name}")
        self.inputs.update(number[n] for n in update.state)
        for call in update.calls:
            reads, makes, overwrites = (tuple(number[n] for n in c) for c in (call.reads, call.makes, call.overwrites))
            self.bytes.update({number[n]: aligned(update.bytes[n]) for n in call.makes})
            self.nodes.append(Node(f"{name}.{call.operator}", reads, makes, overwrites, view=call.view))


def _geometry(value: Value) -> tuple[Any, ...]:
    return value.shape, value.stride, value.dtype
