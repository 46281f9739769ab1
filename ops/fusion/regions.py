"""Which operators of a step become one: a graph in, the same step with regions in it out.

A region has one result that others read, its *sink*, and every operator that nothing else reads in the same pass. So a
region never reads what was computed from its own result. What the backward pass reads of the forward pass's inner
values is, where it is small (a row's statistics), a result of the region too, and else computed again by the
backward region that reads it: its operators are as cheap as reading the value would have been.

    y = silu(a) * u          →  y = F(a, u)
    du = dy * silu(a)        →  du = B(dy, a)        silu(a) is never in memory
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from monet.base.graph import Graph, Operator, Ref, operator_inputs, overwritten
from monet.ops.fusion.cross_entropy import with_cross_entropies
from monet.ops.fusion.fused import Fused, Step, step_of
from monet.ops.fusion.loss_head import with_loss_heads

aten = torch.ops.aten

POINTWISE: frozenset[Callable[..., Any]] = frozenset({
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar,
    aten.div.Tensor, aten.div.Scalar, aten.pow.Tensor_Scalar, aten.neg.default, aten.exp.default, aten.rsqrt.default,
    aten.sqrt.default, aten.reciprocal.default, aten.sigmoid.default, aten.tanh.default, aten.silu.default,
    aten.silu_backward.default, aten.gelu.default, aten.gelu_backward.default, aten.sigmoid_backward.default,
    aten.tanh_backward.default, aten.hardswish.default, aten.hardsigmoid.default, aten._to_copy.default,
    aten.where.self,
})  # fmt: skip
REDUCTIONS: frozenset[Callable[..., Any]] = frozenset({
    aten.mean.dim, aten.sum.dim_IntList, aten._softmax.default, aten._safe_softmax.default,
    aten._softmax_backward_data.default,
})  # fmt: skip
COPIES: frozenset[Callable[..., Any]] = frozenset({aten.cat.default, aten.slice_backward.default, aten.clone.default})
"""What puts elements at other places, as rotary embeddings do."""
VIEWS: frozenset[Callable[..., Any]] = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.detach.default, aten.alias.default, aten.slice.Tensor, aten.transpose.int, aten.permute.default,
})  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

LEAST_ELEMENTS = 1 << 14
"""Of a region's largest value: calls of less take no longer than the call itself."""
MOST_READ = 4
"""Values of the sink's size that a region reads: they are in memory together, where its operators would have summed up
one after another (a Mamba's 16 steps, whose gradients took 2.5 times eager's peak). Inductor's limit for what it reads
anew is the same; a decoder's regions read up to four."""
SMALL = 16
"""An inner value with so many times fewer elements than the sink is kept for the backward pass."""


def with_regions(graph: Graph) -> Graph:
    """``graph`` with regions for operators; the graph itself where there are none. A region reads a weight later than
    its operators did: weight updates are to be put after it (``update_order.py``)."""
    whole, graph = graph, with_cross_entropies(with_loss_heads(graph))
    forward, backward = _Pass(graph, graph.forward), _Pass(graph, graph.backward)
    later = _later_readers(graph)
    for op in reversed(graph.forward):
        forward.grow(op, partial(_may_go, op, later, backward))
    forward.close(later)
    backward.gone = forward.made_of
    for op in reversed(graph.backward):
        backward.grow(op, lambda inner: True)
    backward.close({})
    if graph is whole and not forward.regions and not backward.regions:
        return graph
    operators = forward.operators(), backward.operators()
    made = {name for ops in operators for op in ops for name in op.outputs}
    given = {source.value for source in graph.sources} | {name for name in graph.tangents if name is not None}
    values = {name: value for name, value in graph.values.items() if name in made or name in given}
    return replace(graph, forward=operators[0], backward=operators[1], values=values)


def _later_readers(graph: Graph) -> dict[str, list[Operator]]:
    """Storage → the operators of the backward pass that read it."""
    found: dict[str, list[Operator]] = {}
    for op in graph.backward:
        for storage in dict.fromkeys(map(graph.storage, operator_inputs(op))):
            found.setdefault(storage, []).append(op)
    return found


def _may_go(sink: Operator, later: Mapping[str, list[Operator]], backward: _Pass, op: Operator) -> bool:
    """Whether the backward pass does without what a forward operator makes: it is small and a result of its region, or
    those that read it can compute it again."""
    (result,), (end,) = op.outputs, sink.outputs
    assert result is not None and end is not None
    if op.view or _is_small(result, end, backward.graph):
        return True
    return all(backward.may_end_region(reader) for reader in later.get(result, []))


def _is_small(value: str, sink: str, graph: Graph) -> bool:
    return graph.values[value].numel * SMALL <= graph.values[sink].numel


@dataclass(slots=True)
class _Region:
    """``inner``: its operators besides the sink, views among them, in any order. ``kept``: inner values that are
    results."""

    sink: Operator
    inner: list[Operator] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def operators(self, order: dict[str, int]) -> list[Operator]:
        return sorted([self.sink, *self.inner], key=lambda op: order[op.name])


class _Pass:
    """The regions of one pass. ``gone``: values that are no longer made, with the operators that make them from what
    is: of the other pass, for this one's regions. ``made_of``: the same of this pass, once it is closed."""

    def __init__(self, graph: Graph, operators: Sequence[Operator]) -> None:
        self.graph = graph
        self.gone: Mapping[str, list[Operator]] = {}
        self.made_of: dict[str, list[Operator]] = {}
        self.order = {op.name: at for at, op in enumerate(operators)}
        self.maker = {name: op for op in operators for name in op.outputs if name is not None}
        self.readers: dict[str, list[Operator]] = {}
        for op in operators:
            for name in operator_inputs(op):
                self.readers.setdefault(name, []).append(op)
        self.escaping = {graph.storage(n) for n in (*graph.outputs, *graph.gradients.values()) if n is not None}
        self.escaping |= {graph.storage(n) for n in graph.mutations.values()}
        self.written = {graph.storage(name) for op in operators for name in overwritten(op)}
        self.regions: list[_Region] = []
        self.region_of: dict[str, _Region] = {}
        self._operators = operators

    def fusible(self, op: Operator) -> bool:
        """Whether a compiler's kernel may run the operator together with others."""
        if op.view or op.random or not op.single or op.target not in POINTWISE | REDUCTIONS | COPIES:
            return False
        result = op.outputs[0]
        if result is None or self.graph.storage(result) != result or self.graph.values[result].dtype not in DTYPES:
            return False
        inputs = operator_inputs(op)
        return bool(inputs) and not any(self.graph.storage(n) in self.written for n in (*inputs, result))

    def may_end_region(self, op: Operator) -> bool:
        """Whether it may be a sink, and so compute again what it reads, whoever else is in its region."""
        return self.fusible(op) and not self._may_be_input(op)

    def grow(self, sink: Operator, may_go: Callable[[Operator], bool]) -> None:
        """A region that ends in ``sink``, where one is worth a kernel. ``may_go``: whether the other pass does without
        what an operator makes."""
        if sink.name in self.region_of or not self.may_end_region(sink):
            return
        region, members = _Region(sink), {sink.name}
        grows = True
        while grows:
            grows = False
            for op in self._makers([sink, *region.inner]):
                if op.name in members or op.name in self.region_of or not self._is_inner(op, members) or not may_go(op):
                    continue
                if self._reads_more(op, [sink, *region.inner]):
                    continue
                region.inner.append(op)
                members.add(op.name)
                grows = True
        while region.inner != (rest := [op for op in region.inner if not op.view or self._base_is_in(op, members)]):
            region.inner, members = rest, {sink.name, *(op.name for op in rest)}
        calls = [sink, *(op for op in region.inner if not op.view)]
        names = [name for op in calls for name in (*op.outputs, *operator_inputs(op)) if name is not None]
        large = max(self.graph.values[name].numel for name in names) >= LEAST_ELEMENTS
        if (len(calls) > 1 and large) or any(name in self.gone for name in names):
            self.regions.append(region)
            self.region_of.update(dict.fromkeys(members, region))

    def _reads_more(self, op: Operator, members: Sequence[Operator]) -> bool:
        """Whether a region of ``members``, whose first is the sink, would read too much with ``op``, and more than
        without it."""
        count = self._large_read([*members, op])
        return count > MOST_READ and count > self._large_read(members)

    def _large_read(self, members: Sequence[Operator]) -> int:
        """How many values, not small beside the sink's, a region of ``members`` reads."""
        (end,) = members[0].outputs
        assert end is not None
        read = _read_by(self._calls(members))
        return len({self.graph.storage(name) for name in read if not _is_small(name, end, self.graph)})

    def _calls(self, members: Sequence[Operator]) -> list[Operator]:
        """What a region of ``members`` calls: what makes again the values that are gone comes first."""
        again = (op for member in members for name in operator_inputs(member) for op in self.gone.get(name, []))
        return [*{op.name: op for op in again}.values(), *members]

    def _may_be_input(self, op: Operator) -> bool:
        """Whether the result equals an input, which a compiler would then return: it must have memory of its own."""
        if op.target is aten._to_copy.default:
            (given,), (made,) = operator_inputs(op), op.outputs
            return made is not None and self.graph.values[given].dtype is self.graph.values[made].dtype
        if op.target in (aten.cat.default, aten.slice_backward.default):  # of all of one tensor
            given, (made,) = operator_inputs(op)[0], op.outputs
            return made is not None and self.graph.values[given].numel == self.graph.values[made].numel
        return op.target in POINTWISE and len(op.args) > 1 and op.args[1] in (0, 1)

    def _makers(self, operators: Iterable[Operator]) -> list[Operator]:
        """Of what these read, in this pass."""
        found = (self.maker.get(name) for op in operators for name in operator_inputs(op))
        return list({op.name: op for op in found if op is not None}.values())

    def _is_inner(self, op: Operator, members: Container[str]) -> bool:
        """Whether nothing but ``members`` reads in this pass what the operator makes, and it may be in a kernel."""
        if not self.fusible(op) and not (op.view and op.target in VIEWS):
            return False
        (result,) = op.outputs
        if result is None or self.graph.storage(result) in self.escaping:
            return False
        return all(reader.name in members or self._is_unread_view(reader) for reader in self.readers.get(result, []))

    def _is_unread_view(self, op: Operator) -> bool:
        """Whether the operator is a view that nothing in this pass reads but other such views."""
        if not op.view or op.target not in VIEWS:
            return False
        readers = [reader for name in op.outputs if name is not None for reader in self.readers.get(name, [])]
        return all(self._is_unread_view(reader) for reader in readers)

    def _base_is_in(self, view: Operator, members: Container[str]) -> bool:
        maker = self.maker.get(operator_inputs(view)[0])
        return maker is not None and maker.name in members

    def close(self, later: Container[str]) -> None:
        """Says of each region what it keeps, and of each value that is no longer made what it is made of. ``later``:
        storages that the other pass reads."""
        for region in self.regions:
            members = region.operators(self.order)
            (end,) = region.sink.outputs
            assert end is not None
            for op in region.inner:
                (name,) = op.outputs
                assert name is not None
                if not op.view and name in later and _is_small(name, end, self.graph):
                    region.kept.append(name)
            inner = [name for op in region.inner for name in op.outputs if name is not None]
            self.made_of |= {name: _chain(name, members, region.kept) for name in inner if name not in region.kept}
        for op in self._operators:
            if op.view and op.name not in self.region_of and op.target in VIEWS:
                (base,) = operator_inputs(op)
                (name,) = op.outputs
                if base in self.made_of and name is not None:
                    self.made_of[name] = [*self.made_of[base], op]

    def operators(self) -> tuple[Operator, ...]:
        """Of the pass, with regions. Views of what a region keeps come after it."""
        found: list[Operator] = []
        later: dict[str, list[Operator]] = {}  # sink → such views
        for op in self._operators:
            region = self.region_of.get(op.name)
            if region is not None:
                if op is region.sink:
                    found += [self._fused(region), *later.pop(op.name, [])]
                continue
            if not op.view:
                found.append(op)
                continue
            base = self.graph.storage(operator_inputs(op)[0])
            maker = self.maker.get(base)
            holder = None if maker is None else self.region_of.get(maker.name)
            if op.outputs[0] in self.made_of:
                continue  # whoever reads it computes it again
            if holder is not None and self.order[op.name] < self.order[holder.sink.name]:
                later.setdefault(holder.sink.name, []).append(op)
            else:
                found.append(op)
        return tuple(found)

    def _fused(self, region: _Region) -> Operator:
        calls = self._calls(region.operators(self.order))
        inputs = _read_by(calls)
        slots = {name: index for index, name in enumerate(inputs)}
        steps: list[Step] = []
        for op in calls:
            steps.append(step_of(op, slots))
            (result,) = op.outputs
            if result is not None:
                slots[result] = len(inputs) + len(steps) - 1
        (result,) = region.sink.outputs
        assert result is not None
        outputs = (result, *region.kept)
        fused = Fused(len(inputs), tuple(steps), tuple(slots[name] for name in outputs))
        return replace(
            region.sink,
            target=fused,
            args=tuple(Ref(name) for name in inputs),
            kwargs=(),
            outputs=outputs,
            single=len(outputs) == 1,
        )


def _read_by(calls: Sequence[Operator]) -> list[str]:
    """What these read and do not make, each once."""
    made = {name for op in calls for name in op.outputs}
    return list(dict.fromkeys(name for op in calls for name in operator_inputs(op) if name not in made))


def _chain(name: str, members: Sequence[Operator], kept: Iterable[str]) -> list[Operator]:
    """The operators of a region that make an inner value from its inputs and from what is kept of it, in order."""
    needed, found = {name}, []
    for op in reversed(members):
        if set(op.outputs) & needed:
            found.append(op)
            needed |= set(operator_inputs(op)) - set(kept)
    return found[::-1]
