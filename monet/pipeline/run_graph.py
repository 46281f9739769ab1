"""A schedule as a graph to order: every run a node, every making of a storage a storage of its own.

Recomputed copies, saved intermediates, workspaces and in-place runs are ordinary nodes here. Besides data, this must
stay in order: runs that draw random numbers; runs that change a parameter, a buffer or an optimiser's state; and a
storage is made again only after the last reader of its former content, so that each name means one block at a time.
An operator also comes after what makes an input that its implementation does not read, where only the input's shape
matters, and before what overwrites it: in a problem along this order (``orders.py``), others read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from monet.base.graph import operator_inputs, written_sources
from monet.base.measurement import Request
from monet.ops.weight_update import ParameterUpdate
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, placed_storages
from monet.planner.order import Ordered, best_order
from monet.planner.order.graph import Node, OrderGraph, peak_bytes
from monet.plans.format import aligned

_BARRIER = "the forward pass returns"


def reorder(schedule: Sequence[Call], lowered: Lowered, *, time_limit_s: float) -> tuple[tuple[Call, ...], Ordered]:
    """The schedule in the best order that was found, and that order's certificate.

    The certificate counts whole runs: what a run reads and makes, beside its workspace. It is about the orders that the
    graph of ``run_graph`` allows.
    """
    graph, called = run_graph(schedule, lowered)
    ordered = best_order(graph, time_limit_s=time_limit_s)
    calls = (called[n] for n in ordered.order)
    return tuple(call for call in calls if call is not None), ordered


def as_scheduled(schedule: Sequence[Call], lowered: Lowered, bound_bytes: int) -> Ordered:
    """The certificate of the schedule as it is; ``bound_bytes``: what no order needs less than."""
    graph, _ = run_graph(schedule, lowered)
    order = tuple(range(len(graph.nodes)))
    return Ordered(order, peak_bytes(graph, order), bound_bytes, "captured")


def run_graph(schedule: Sequence[Call], lowered: Lowered) -> tuple[OrderGraph, tuple[Call | None, ...]]:
    """The graph, and the run that each node is. A node without a run (None) parts the forward pass from what follows,
    where autograd calls the two apart."""
    writer = _Writer(schedule, lowered)
    apart = any(lowered.catalogue.graph.tangents)
    border = next((n for n, call in enumerate(schedule) if call.kind != "forward"), len(schedule))
    for n, call in enumerate(schedule):
        if apart and n == border:
            writer.part()
        writer.add(call, reads_border=apart)
    leaving = frozenset(writer.holder[storage] for storage in lowered.leaving if storage in writer.holder)
    graph = OrderGraph(tuple(writer.nodes), writer.bytes, frozenset(writer.inputs), leaving)
    return graph, tuple(writer.called)


class _Writer:
    """Numbers the storages: each making is a storage of its own, with its bytes. A storage that is there for the order
    alone is an input, and has none."""

    def __init__(self, schedule: Sequence[Call], lowered: Lowered) -> None:
        self.catalogue = lowered.catalogue
        graph = self.catalogue.graph
        self.placed = placed_storages(lowered)
        self.changed = {graph.storage(name) for name in written_sources(graph)}
        self.random = {op.name for op in graph.forward if op.random}
        made = Counter(storage for call in schedule for storage in self._made(call))
        self.again = {storage for storage, count in made.items() if count > 1}
        self.operators = {op.name: op for op in (*graph.forward, *graph.backward)}
        self.makes = frozenset(made)
        self.unread = {(call.kind, call.node): self._unread(call) for call in schedule if call.kind != "recompute"}
        self.shapes = {storage for unread in self.unread.values() for storage in unread}
        self.nodes: list[Node] = []
        self.called: list[Call | None] = []
        self.bytes: dict[int, int] = {}
        self.inputs: set[int] = set()
        self.ordering: dict[str, int] = {}  # name → a storage that is there for the order alone
        self.holder: dict[str, int] = {}  # storage → its newest making
        self.count = 0

    def part(self) -> None:
        """Add a node that every run so far comes before, and every later run after."""
        self.nodes.append(Node(_BARRIER, (), (), (self._order(_BARRIER),)))
        self.called.append(None)

    def add(self, call: Call, *, reads_border: bool) -> None:
        """Add a run's node. ``reads_border``: it stays on its side of the node that parts forward from the rest."""
        reads = {self._order(_BARRIER)} if reads_border else set()
        overwrites: set[int] = set()
        for storage in self._read(call):
            if storage in self.placed:
                reads.add(self.holder[storage])
                if storage in self.again:
                    reads.add(self._order(storage))
            else:
                (overwrites if self._changes(call, storage) else reads).add(self._order(storage))
        reads |= {self._order(f"{storage} is made") for storage in self.unread.get((call.kind, call.node), ())}
        if call.kind != "recompute":
            overwrites |= {self._order(f"{storage} is made") for storage in self._made(call) if storage in self.shapes}
        if call.kind == "forward" and call.node in self.random:
            overwrites.add(self._order("random numbers"))
        makes: list[int] = []
        requested = self._requested(call)
        old = call.implementation.overwrites
        replaced = None
        if old is not None:
            replaced = self.holder.get(self.catalogue.storage(old))
            if self.catalogue.storage(old) in self.shapes:
                overwrites.add(self._order(f"{self.catalogue.storage(old)} is made"))
            if replaced is None:
                # A gradient that adds up is outside the arena, an empty tensor needs none: both keep their order.
                overwrites.add(self._order(self.catalogue.storage(old)))
        for storage in self._made(call):
            if storage not in self.placed:
                overwrites.add(self._order(storage))
                continue
            if storage in self.again:
                overwrites.add(self._order(storage))
            if replaced is not None:
                overwrites.add(replaced)
                self.holder[storage], replaced = replaced, None
            else:
                self.holder[storage] = number = self._number()
                self.bytes[number] = requested.get(storage, 0)
                makes.append(number)
        workspace = self._peak(call) - sum(self.bytes[number] for number in makes)
        self.nodes.append(
            Node(call.node, tuple(reads - overwrites), tuple(makes), tuple(overwrites), max(0, workspace))
        )
        self.called.append(call)

    def _number(self) -> int:
        """The next storage's."""
        self.count += 1
        return self.count

    def _order(self, name: str) -> int:
        """The storage by which whatever overwrites ``name`` stays in order with its readers."""
        if name not in self.ordering:
            self.ordering[name] = self._number()
            self.inputs.add(self.ordering[name])
        return self.ordering[name]

    def _read(self, call: Call) -> list[str]:
        """Storages that the run is given, without repetition."""
        return list(dict.fromkeys(self.catalogue.storage(name) for name in call.implementation.inputs()))

    def _unread(self, call: Call) -> list[str]:
        """Storages of the operator's inputs that the run is not given, and that the step makes."""
        operator = self.operators.get(call.node)
        if operator is None:
            return []
        read = set(self._read(call))
        inputs = dict.fromkeys(self.catalogue.storage(name) for name in operator_inputs(operator))
        return [storage for storage in inputs if storage not in read and storage in self.makes]

    def _made(self, call: Call) -> list[str]:
        """Storages of the results, the one that takes an input's place first."""
        names = [name for name in call.implementation.outputs if name is not None]
        return list(dict.fromkeys(self.catalogue.storage(name) for name in names))

    def _changes(self, call: Call, storage: str) -> bool:
        """Whether a run writes to a source that it reads: an update to all but its gradient, others in forward only."""
        if isinstance(call.implementation.call, ParameterUpdate):
            return storage not in self.placed
        return call.kind == "forward" and storage in self.changed

    def _requested(self, call: Call) -> dict[str, int]:
        """Bytes of the results that the run asks for in the arena, by storage."""
        sizes = {}
        for request in call.measured.requests:
            name = call.implementation.outputs[request.output] if request.output is not None else None
            if name is not None and (storage := self.catalogue.storage(name)) in self.placed:
                sizes[storage] = aligned(request.bytes)
        return sizes

    def _peak(self, call: Call) -> int:
        """The most bytes of the arena that the run itself asks for at once."""
        requests = [r for r in call.measured.requests if not self._outside(call, r)]
        return max(
            (
                sum(aligned(r.bytes) for r in requests if r.begin <= tick and (r.end is None or tick < r.end))
                for tick in range(call.measured.ticks)
            ),
            default=0,
        )

    def _outside(self, call: Call, request: Request) -> bool:
        """Whether the request is for a result that PyTorch's allocator serves, since it outlives the step."""
        name = call.implementation.outputs[request.output] if request.output is not None else None
        return name is not None and self.catalogue.storage(name) not in self.placed
