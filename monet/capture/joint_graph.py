"""From torch's joint graph of forward and backward aten operators to a ``Graph``."""

from __future__ import annotations

import operator as python_operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from monet.base.graph import BUFFER, CONSTANT, INPUT, PARAMETER, Graph, Operator, Ref, Source, Value
from monet.capture.export_errors import where
from monet.capture.varying_inputs import Symbols
from monet.errors import CaptureError

aten = torch.ops.aten
# Their schemas say they make new tensors; in memory these are views.
_UNDECLARED_VIEWS = {
    aten._unsafe_view.default,
    aten.unsafe_chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
}
# Its workspace has pointers in it: it can be neither measured on made-up data nor moved.
_OPAQUE = {aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default}


def output_of(graph: torch.fx.Graph) -> torch.fx.Node:
    """The node that lists the results."""
    output: torch.fx.Node = next(node for node in graph.nodes if node.op == "output")
    return output


@dataclass(frozen=True, slots=True)
class _Results:
    """What the joint graph returns. ``outputs``: by position, None for one that is no tensor; ``gradients`` and
    ``mutations`` as in ``Graph``."""

    outputs: tuple[str | None, ...]
    gradients: Mapping[str, str]
    mutations: Mapping[str, str]


class JointReader:
    """Turns the traced joint graph into a ``Graph``.

    ``model``, ``constants``, ``leaves``: where the tensors of parameters and buffers, of constants (by target) and of
    inputs (by position) are. ``symbols``: what varying sizes are in. ``output_literals``: after ``graph``, the outputs
    that are no tensors, by position.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        model: torch.nn.Module,
        constants: Mapping[str, torch.Tensor],
        leaves: Sequence[Any],
        symbols: Symbols | None = None,
    ) -> None:
        self.fx = graph
        self.leaves = leaves
        self.model = model
        self.constants = constants
        self._symbols = symbols
        self.values: dict[str, Value] = {}
        self.output_literals: dict[int, Any] = {}
        self._memory: dict[int, str] = {}  # real storage → first source that has it (tied weights)

    def graph(self) -> Graph:
        """The joint graph's placeholders, operators and results as one ``Graph``, not yet in canonical form.

        Raises ``CaptureError`` where the trace has what cannot be planned.
        """
        sources, tangents = self._placeholders()
        forward, backward = self._operators(tangents.values())
        results = self._results()
        tangent_of = {position: node.name for position, node in tangents.items()}
        return Graph(
            values=self.values,
            sources=sources,
            forward=forward,
            backward=backward,
            outputs=results.outputs,
            tangents=tuple(tangent_of.get(position) for position in range(len(results.outputs))),
            gradients=results.gradients,
            mutations=results.mutations,
        )

    def _placeholders(self) -> tuple[tuple[Source, ...], dict[int, torch.fx.Node]]:
        """The sources in order, and the tangents by the position of their output."""
        sources: list[Source] = []
        tangents: dict[int, torch.fx.Node] = {}
        for node in self.fx.nodes:
            if node.op != "placeholder":
                continue
            description = node.meta["desc"]
            if self._is_literal(description):
                continue
            self._add(node, node.name)
            if type(description).__name__ != "TangentAOTInput":
                sources.append(self._source(node, description))
                continue
            if type(description.output).__name__ != "PlainAOTOutput":
                raise CaptureError(
                    "the forward pass changes a parameter or an input in place, and its gradient goes on "
                    "through that (an embedding with max_norm does); do it outside the model, under no_grad"
                )
            tangents[description.output.idx] = node
        return tuple(sources), tangents

    def _operators(self, tangents: Iterable[torch.fx.Node]) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
        """The calls of the forward and of the backward pass, in order.

        The backward pass has every call that depends on a tangent. A call that is traced after the first of these
        belongs to it too, even if it depends on no tangent: made earlier, its result would only live longer. Views of
        forward values stay in the forward pass.
        """
        late = set(tangents)  # these, and what is made in the backward pass
        forward: list[Operator] = []
        backward: list[Operator] = []
        for node in self.fx.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if isinstance(
                node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool
            ):  # read where it is an argument
                late |= set() if late.isdisjoint(node.all_input_nodes) else {node}
                continue
            if node.op != "call_function":
                raise CaptureError(f"the joint graph has a {node.op} node {node.name}, which monet does not know")
            depends = not late.isdisjoint(node.all_input_nodes)
            if node.target is python_operator.getitem:  # read with the call that it is a result of
                late |= {node} if depends else set()
                continue
            operator = self._operator(node)
            if depends or (backward and not operator.view):
                late.add(node)
                backward.append(operator)
            else:
                forward.append(operator)
        return tuple(forward), tuple(backward)

    def _results(self) -> _Results:
        """Outputs, gradients and mutations; notes the outputs that are no tensors in ``output_literals``."""
        outputs: dict[int, str | None] = {}
        gradients: dict[str, str] = {}
        mutations: dict[str, str] = {}
        placeholder_of = {node.meta["desc"]: node.name for node in self.fx.nodes if node.op == "placeholder"}
        results = output_of(self.fx)
        for result, description in zip(results.args[0], results.meta["desc"], strict=True):  # type: ignore[arg-type]
            kind = type(description).__name__
            name = result.name if isinstance(result, torch.fx.Node) else None
            if isinstance(result, torch.fx.Node) and isinstance(result.meta.get("val"), torch.SymInt | torch.SymFloat):
                raise CaptureError("the model returns a size that varies; take it from a shape outside of it")
            if kind == "PlainAOTOutput":
                outputs[description.idx] = name
                if name is None:
                    self.output_literals[description.idx] = result
            elif kind == "GradAOTOutput":
                if name is not None:
                    gradients[placeholder_of[description.grad_of]] = name
            elif kind == "InputMutationAOTOutput":
                mutations[placeholder_of[description.mutated_input]] = result.name
            elif result is not None:
                raise CaptureError(f"the joint graph returns a {kind}, which monet does not know")
        return _Results(tuple(outputs[position] for position in range(len(outputs))), gradients, mutations)

    def _is_literal(self, description: Any) -> bool:
        """An input that is no tensor: its value is in the graph already."""
        plain = type(description).__name__ == "PlainAOTInput"
        return plain and not isinstance(self.leaves[description.idx], torch.Tensor)

    def _source(self, node: torch.fx.Node, description: Any) -> Source:
        """The source that a placeholder is. Raises ``CaptureError`` for a kind that cannot be planned."""
        kind = type(description).__name__
        if kind == "ParamAOTInput":
            parameter = self.model.get_parameter(description.target)
            self._tie(node.name, parameter)
            return Source(node.name, PARAMETER, description.target, parameter.requires_grad)
        if kind == "BufferAOTInput":
            constant = self.constants.get(description.target)
            self._tie(node.name, self.model.get_buffer(description.target) if constant is None else constant)
            return Source(node.name, BUFFER if constant is None else CONSTANT, description.target, False)
        if kind == "PlainAOTInput":
            return Source(node.name, INPUT, str(description.idx), self.leaves[description.idx].requires_grad)
        if kind in ("ForwardTokenAOTInput", "BackwardTokenAOTInput"):
            raise CaptureError(
                "an operator of the model may raise an error by its values, as those of torch.linalg do; use the form "
                "that returns it instead (inv_ex, cholesky_ex, solve_ex, lu_factor_ex)"
            )
        raise CaptureError(f"the joint graph takes a {kind}, which monet does not know")

    def _tie(self, name: str, tensor: torch.Tensor) -> None:
        """Give a source the storage of the first source whose tensor has the same memory, all of it: a trace's own may
        end at the last element (a periodic window is one element less than what was made)."""
        storage = tensor.untyped_storage()
        first = self._memory.setdefault(storage._cdata, name)
        self.values[name] = replace(self.values[name], storage=first, storage_bytes=storage.nbytes())

    def _add(self, node: torch.fx.Node, storage: str) -> None:
        """Add the node's tensor to the values. Raises ``CaptureError`` where it is no tensor, or not of fixed size."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"operator {node.name} ({node.target}) yields an object of type {type(value).__name__}, not a tensor"
            )
        if value.layout is not torch.strided:
            raise CaptureError(
                f"operator {node.name} ({node.target}) makes a tensor with layout {value.layout}, whose memory depends "
                "on the values in it (the gradient of an embedding with sparse=True is one): monet plans dense tensors"
                + where(node)
            )
        try:
            shape, stride = tuple(map(self._number, value.shape)), tuple(map(self._number, value.stride()))
        except Exception as error:
            raise CaptureError(f"operator {node.name} ({node.target}) has a size that depends on data") from error
        self.values[node.name] = Value(
            name=node.name,
            shape=shape,
            stride=stride,
            offset=self._number(value.storage_offset()),
            dtype=value.dtype,
            device=value.device,
            storage=storage,
            storage_bytes=self._number(value.untyped_storage().nbytes()),
            conjugate=value.is_conj(),
            negative=value.is_neg(),
        )

    def _number(self, size: Any) -> int:
        return int(size) if self._symbols is None else self._symbols.number(size)

    def _argument(self, argument: Any) -> Any:
        """The argument tree with a ``Ref`` for each node that is a tensor, and a number for each size."""
        if isinstance(argument, torch.fx.Node):
            value = argument.meta.get("val")
            symbols = torch.SymInt | torch.SymFloat | torch.SymBool
            return self._argument(value) if isinstance(value, symbols) else Ref(argument.name)
        if isinstance(argument, tuple | list):
            return [self._argument(item) for item in argument]
        if isinstance(argument, torch.SymInt | torch.SymFloat) and self._symbols is not None:
            return self._symbols.number(argument)
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise CaptureError("a size of the model depends on data; monet plans fixed shapes")
        return argument

    def _operator(self, node: torch.fx.Node) -> Operator:
        """The call of a node; adds its results to the values. Raises ``CaptureError`` where it cannot be planned."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"{node.name} calls {target}, which is no aten operator" + where(node))
        if target in _OPAQUE:
            raise CaptureError(
                f"{node.name} is oneDNN's own LSTM ({target}), which cannot be planned; plan and train under "
                "torch.backends.mkldnn.flags(enabled=False), which takes PyTorch's" + where(node)
            )
        view_of = _viewed(target, node)
        result = node.meta["val"]
        outputs: tuple[str | None, ...]
        if isinstance(result, torch.Tensor):
            outputs, single = (node.name,), True
            self._add(node, self._storage_of(view_of, node))
        elif isinstance(result, tuple | list):
            names: list[str | None] = [None] * len(result)
            for user in node.users:
                if user.target is not python_operator.getitem:
                    raise CaptureError(f"{user.name} reads all results of {node.name} at once" + where(node))
                index = int(user.args[1])  # type: ignore[arg-type]
                if names[index] is None:
                    names[index] = user.name
                    self._add(user, self._storage_of(view_of, user))
            outputs, single = tuple(names), False
        else:
            raise CaptureError(f"{node.name} ({target}) yields an object of type {type(result).__name__}" + where(node))
        return Operator(
            name=node.name,
            target=target,
            args=tuple(self._argument(a) for a in node.args),
            kwargs=tuple((k, self._argument(v)) for k, v in node.kwargs.items()),
            outputs=outputs,
            single=single,
            view=view_of is not None,
            random=torch.Tag.nondeterministic_seeded in target.tags,
            where=where(node).strip(),
        )

    def _storage_of(self, view_of: torch.fx.Node | None, node: torch.fx.Node) -> str:
        return node.name if view_of is None else self.values[view_of.name].storage


def _viewed(target: torch._ops.OpOverload, node: torch.fx.Node) -> torch.fx.Node | None:
    """The input whose memory the operator's results share, or None."""
    arguments = target._schema.arguments
    if target in _UNDECLARED_VIEWS:
        first = node.args[0]
        return first if isinstance(first, torch.fx.Node) else None
    if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
        raise CaptureError(f"{node.name} ({target}) changes its input in place, although the graph is functional")
    for result in target._schema.returns:
        if result.alias_info is None:
            continue
        for argument, value in zip(arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(value, torch.fx.Node):
                return value
    return None
