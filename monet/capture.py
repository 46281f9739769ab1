"""From a module and sample inputs to a ``Graph``: one joint graph of forward and backward aten operators.

``torch.export`` traces the module, ``aot_export_joint_with_descriptors`` appends its derivatives and
removes mutation; both work on fake tensors, so no memory of the step is touched.
"""

from __future__ import annotations

import operator as python_operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.fx.experimental.proxy_tensor as proxy_tensor
import torch.utils._pytree as pytree
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import unset_fake_temporarily

from monet.custom_functions import CustomFunctionFound, refusing_custom_functions
from monet.decompositions import without_decompositions
from monet.errors import CaptureError
from monet.gradient_sums import sum_gradients_in_place
from monet.graph import Graph, Operator, Ref, Source, Value
from monet.kernel_geometry import kernels_own_geometry
from monet.rewrite import canonical
from monet.shared_casts import share_casts

aten = torch.ops.aten

# Their schemas say they make new tensors; in memory these are views.
_UNDECLARED_VIEWS = {
    aten._unsafe_view.default,
    aten.unsafe_chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
}
# torch.export puts the first before every cast; shapes, strides and dtypes of a plan are fixed anyway. The others look
# at data (classes of a one-hot encoding) and make nothing.
_CHECKS = {aten._assert_tensor_metadata.default, aten._assert_async.default, aten._assert_async.msg}
# Its workspace has pointers in it: it can be neither measured on made-up data nor moved.
_OPAQUE = {aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default}


@dataclass(frozen=True)
class Captured:
    """A graph with what is needed to call it like the module.

    ``constants``: tensors that are neither parameters nor buffers of the module, by source target.
    ``literals``: the flattened inputs that are no tensors, by position; the graph has them inside.
    ``output_literals``: likewise for the outputs.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    literals: Mapping[int, Any]
    output_literals: Mapping[int, Any]


@kernels_own_geometry()
@unset_fake_temporarily()  # a mode around this call would meet the fake tensors of torch.export's own
def capture(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients_leave: bool = True,
) -> Captured:
    """The training step of ``model`` on inputs shaped like ``args`` and ``kwargs``.

    The model is captured in the mode it is in, and in the state of autocast that is on; as eager should be, backward is
    then called outside of it. Inputs that require a gradient get one. Neither parameters nor buffers are changed.
    ``gradients_leave``: gradients are the caller's memory, in which they add up; else they are values like others, for
    operators of the step. Model and inputs may be fake (made under one ``FakeTensorMode``): then the largest model is
    captured without memory for it. Raises ``CaptureError`` with torch's reason and the line of the model where torch
    knows it.
    """
    args, kwargs = _with_own_memory(model, tuple(args), dict(kwargs or {}))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type == "meta":
            raise CaptureError(
                f"{name} is on the meta device, where torch leaves gradients of some operators out; make the model and "
                "its inputs under torch._subclasses.FakeTensorMode(), which takes no memory either"
            )
    if not any(p.requires_grad for p in model.parameters()) and not any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in pytree.tree_leaves((args, kwargs))
    ):
        raise CaptureError("nothing to train: no parameter and no input of the model requires a gradient")
    try:
        with _autocast_as_written(), without_decompositions(), refusing_custom_functions():
            program = torch.export.export(model, args, kwargs, strict=False)
        module = program.module(check_guards=False)
    except CustomFunctionFound as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # torch.export raises many kinds
        raise CaptureError(_reason("torch.export cannot trace the model", error)) from error
    if not isinstance(module, torch.fx.GraphModule):
        raise CaptureError("torch.export returned no graph")
    constants = _promote_constants(module, model)
    share_casts(module, device_type(model, (args, kwargs)))
    _separate_outputs(module)
    leaves = pytree.tree_leaves((args, kwargs))
    literals = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    joint = _joint(module, args, kwargs)
    if joint is None:
        _separate_outputs(module, everything=True)
        joint = _joint(module, args, kwargs)
        if joint is None:
            raise CaptureError("an output of the model is a view that torch cannot separate; return a clone of it")
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    if in_spec is None or out_spec is None:
        raise CaptureError("torch.export recorded no structure of inputs and outputs")
    reader = _Reader(joint, model, constants, leaves)
    graph = reader.graph()
    graph = canonical(graph)
    if gradients_leave:
        graph = sum_gradients_in_place(graph)
    return Captured(graph, constants, in_spec, out_spec, literals, reader.output_literals)


def _with_own_memory(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs; one that shares memory with another (a text and its labels), or is a part of a larger tensor, is
    replaced by one of its geometry.

    Tracing would take two that are one tensor for one input. A plan is for a geometry, not for what shares memory.
    """
    taken = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        storage = leaf.untyped_storage()
        least = 1 + sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True)) if leaf.numel() else 0
        if storage._cdata not in taken and storage.nbytes() == least * leaf.itemsize:
            taken.add(storage._cdata)
            return leaf
        mode = leaf.fake_mode if isinstance(leaf, torch._subclasses.FakeTensor) else nullcontext()
        with mode:
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
        return made.requires_grad_(leaf.requires_grad)

    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(own, (args, kwargs))
    return found


def device_type(model: torch.nn.Module, inputs: Any) -> str:
    """Of the first parameter, buffer or input: the kind of device whose autocast matters."""
    tensors = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs))
    return next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")


@contextmanager
def _autocast_as_written() -> Iterator[None]:
    """Tracing turns autocast's cache off, and then writes down for each ``with torch.autocast`` in the model that it is
    off. Here it is left as it is; ``share_casts`` does what the cache does."""
    real = proxy_tensor.disable_autocast_cache
    proxy_tensor.disable_autocast_cache = nullcontext  # type: ignore[assignment]
    try:
        yield
    finally:
        proxy_tensor.disable_autocast_cache = real
        torch.clear_autocast_cache()  # of fake tensors


def _reason(what: str, error: BaseException) -> str:
    unknown = re.search(r"Found <class '([\w.]+)'> in output", str(error))
    if unknown is not None:
        advice = (
            "; training needs no cache of keys and values: set model.config.use_cache = False, or pass use_cache=False"
            if "Cache" in unknown[1]
            else "; return tensors in tuples, lists or dicts, or register the class with torch.utils._pytree"
        )
        return f"{what}: it returns a {unknown[1]}, whose tensors torch does not find" + advice
    lines = [line for line in str(error).splitlines() if line.strip()]
    source = next(
        (line.strip() for line in lines if line.strip().startswith("File ") and "site-packages/torch/" not in line),
        None,
    )
    head = lines[0] if lines else type(error).__name__
    return f"{what}: {type(error).__name__}: {head}" + (f"\n  at {source}" if source else "")


def _promote_constants(module: torch.fx.GraphModule, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors held as plain attributes become buffers of the traced module, so that they enter as inputs."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    constants: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr" or node.target in known or node.target in constants:
            continue
        *path, name = str(node.target).split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        tensor = getattr(owner, name)
        if not isinstance(tensor, torch.Tensor):
            continue
        if name not in owner._buffers and name not in owner._parameters:
            delattr(owner, name)
            owner.register_buffer(name, tensor)
        constants[str(node.target)] = tensor
    return constants


def _separate_outputs(module: torch.fx.GraphModule, *, everything: bool = False) -> None:
    """Clone outputs that share memory with an input, a parameter or another output, or hold more than they show.

    Autograd would give outputs that share memory one common gradient outside the graph; a copy has
    its own. A view of a part would keep the whole in memory for as long as the user keeps the output.
    """
    graph = module.graph
    (output,) = [node for node in graph.nodes if node.op == "output"]
    taken = {
        node.meta["val"].untyped_storage()._cdata
        for node in graph.nodes
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), torch.Tensor)
    }
    replaced: list[Any] = []
    results = output.args[0]
    if not isinstance(results, tuple | list):
        raise CaptureError("the traced module returns no flat tuple")
    for result in results:
        value = result.meta.get("val") if isinstance(result, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor):
            replaced.append(result)
            continue
        storage = value.untyped_storage()._cdata
        source = result.op in ("placeholder", "get_attr")
        part = value.untyped_storage().nbytes() != value.numel() * value.dtype.itemsize
        if source or part or storage in taken or (everything and value.dtype.is_floating_point):
            with graph.inserting_before(output):
                result = graph.call_function(aten.clone.default, (result,))
                result.meta["val"] = value.clone()
        taken.add(storage)
        replaced.append(result)
    output.args = (tuple(replaced),)
    graph.lint()
    module.recompile()


def _joint(module: torch.fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Graph | None:
    """The joint graph; None where torch wants to rebuild an output from an intermediate outside the graph."""
    try:
        with without_decompositions(), ExitStack() as stack:  # closes the fake-tensor mode before anything real runs
            stack.enter_context(functorch_config.patch(backward_pass_autocast="off"))
            joint = aot_export_joint_with_descriptors(stack, module, args, kwargs)
            graph = joint.graph_module.graph
    except Exception as error:
        raise CaptureError(_reason("the backward pass cannot be traced", error)) from error
    descriptions = _output(graph).meta["desc"]
    placeholders = [node.meta["desc"] for node in graph.nodes if node.op == "placeholder"]
    if any(type(d).__name__ == "IntermediateBaseAOTOutput" for d in descriptions):
        return None
    if any(type(d).__name__ in ("SyntheticBaseAOTInput", "ViewBaseAOTInput") for d in placeholders):
        raise CaptureError("two inputs of the model share memory; pass a clone of one of them")
    for node in graph.nodes:
        if node.target in _CHECKS:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _output(graph: torch.fx.Graph) -> torch.fx.Node:
    output: torch.fx.Node = next(node for node in graph.nodes if node.op == "output")
    return output


class _Reader:
    """Turns the traced joint graph into a ``Graph``."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        model: torch.nn.Module,
        constants: Mapping[str, torch.Tensor],
        leaves: Sequence[Any],
    ) -> None:
        self.fx = graph
        self.leaves = leaves
        self.model = model
        self.constants = constants
        self.values: dict[str, Value] = {}
        self.output_literals: dict[int, Any] = {}
        self._memory: dict[int, str] = {}  # real storage → first source that has it (tied weights)

    def graph(self) -> Graph:
        sources: list[Source] = []
        tangents: dict[int, str] = {}
        dependent: set[torch.fx.Node] = set()  # on a tangent
        late: set[torch.fx.Node] = set()  # in the backward pass
        forward: list[Operator] = []
        backward: list[Operator] = []
        for node in self.fx.nodes:
            if node.op == "placeholder":
                description = node.meta["desc"]
                if self._is_literal(description):
                    continue
                self._add(node, node.name)
                if type(description).__name__ == "TangentAOTInput":
                    if type(description.output).__name__ != "PlainAOTOutput":
                        raise CaptureError(
                            "the forward pass changes a parameter or an input in place, and its gradient goes on "
                            "through that (an embedding with max_norm does); do it outside the model, under no_grad"
                        )
                    tangents[description.output.idx] = node.name
                    dependent.add(node)
                else:
                    sources.append(self._source(node, description))
            elif node.op == "call_function":
                if any(parent in dependent for parent in node.all_input_nodes):
                    dependent.add(node)
                if node.target is python_operator.getitem:
                    late |= {node} if node.args[0] in late else set()
                    continue
                # What is traced after the first gradient belongs to the backward pass even when it
                # needs no gradient: made earlier, it would only live longer. Views of forward values go with these.
                made = self._operator(node)
                if node in dependent or (backward and not made.view) or late & {*node.all_input_nodes}:
                    late.add(node)
                (backward if node in late else forward).append(made)
            elif node.op != "output":
                raise CaptureError(f"the joint graph has a {node.op} node {node.name}, which monet does not know")
        outputs: dict[int, str | None] = {}
        gradients: dict[str, str] = {}
        mutations: dict[str, str] = {}
        by_description = {n.meta["desc"]: n.name for n in self.fx.nodes if n.op == "placeholder"}
        results = _output(self.fx)
        for result, description in zip(results.args[0], results.meta["desc"], strict=True):  # type: ignore[arg-type]
            kind = type(description).__name__
            if kind == "PlainAOTOutput":
                outputs[description.idx] = result.name if isinstance(result, torch.fx.Node) else None
                if not isinstance(result, torch.fx.Node):
                    self.output_literals[description.idx] = result
            elif kind == "GradAOTOutput":
                if isinstance(result, torch.fx.Node):
                    gradients[by_description[description.grad_of]] = result.name
            elif kind == "InputMutationAOTOutput":
                mutations[by_description[description.mutated_input]] = result.name
            elif result is not None:
                raise CaptureError(f"the joint graph returns a {kind}, which monet does not know")
        return Graph(
            values=self.values,
            sources=tuple(sources),
            forward=tuple(forward),
            backward=tuple(backward),
            outputs=tuple(outputs[i] for i in range(len(outputs))),
            tangents=tuple(tangents.get(i) for i in range(len(outputs))),
            gradients=gradients,
            mutations=mutations,
        )

    def _is_literal(self, description: Any) -> bool:
        """An input that is no tensor: its value is in the graph already."""
        plain = type(description).__name__ == "PlainAOTInput"
        return plain and not isinstance(self.leaves[description.idx], torch.Tensor)

    def _source(self, node: torch.fx.Node, description: Any) -> Source:
        kind = type(description).__name__
        if kind == "ParamAOTInput":
            parameter = self.model.get_parameter(description.target)
            self._tie(node.name, parameter)
            return Source(node.name, "parameter", description.target, parameter.requires_grad)
        if kind == "BufferAOTInput":
            constant = self.constants.get(description.target)
            self._tie(node.name, self.model.get_buffer(description.target) if constant is None else constant)
            return Source(node.name, "buffer" if constant is None else "constant", description.target, False)
        if kind == "PlainAOTInput":
            return Source(node.name, "input", str(description.idx), self.leaves[description.idx].requires_grad)
        raise CaptureError(f"the joint graph takes a {kind}, which monet does not know")

    def _tie(self, name: str, tensor: torch.Tensor) -> None:
        first = self._memory.setdefault(tensor.untyped_storage()._cdata, name)
        self.values[name] = replace(self.values[name], storage=first)

    def _add(self, node: torch.fx.Node, storage: str) -> None:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"operator {node.name} ({node.target}) yields a {type(value).__name__}, not a tensor")
        try:
            shape, stride = tuple(int(n) for n in value.shape), tuple(int(n) for n in value.stride())
        except Exception as error:
            raise CaptureError(f"operator {node.name} ({node.target}) has a size that depends on data") from error
        self.values[node.name] = Value(
            name=node.name,
            shape=shape,
            stride=stride,
            offset=int(value.storage_offset()),
            dtype=value.dtype,
            device=value.device,
            storage=storage,
            storage_bytes=int(value.untyped_storage().nbytes()),
            conjugate=value.is_conj(),
            negative=value.is_neg(),
        )

    def _operator(self, node: torch.fx.Node) -> Operator:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"{node.name} calls {target}, which is no aten operator" + _where(node))
        if target in _OPAQUE:
            raise CaptureError(
                f"{node.name} is oneDNN's own LSTM ({target}), which cannot be planned; plan and train under "
                "torch.backends.mkldnn.flags(enabled=False), which takes PyTorch's" + _where(node)
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
                    raise CaptureError(f"{user.name} reads all results of {node.name} at once" + _where(node))
                index = int(user.args[1])  # type: ignore[arg-type]
                if names[index] is None:
                    names[index] = user.name
                    self._add(user, self._storage_of(view_of, user))
            outputs, single = tuple(names), False
        else:
            raise CaptureError(f"{node.name} ({target}) yields a {type(result).__name__}" + _where(node))
        return Operator(
            name=node.name,
            target=target,
            args=tuple(_argument(a) for a in node.args),
            kwargs=tuple((k, _argument(v)) for k, v in node.kwargs.items()),
            outputs=outputs,
            single=single,
            view=view_of is not None,
            random=torch.Tag.nondeterministic_seeded in target.tags,
            where=_where(node).strip(),
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


def _argument(argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node):
        return Ref(argument.name)
    if isinstance(argument, tuple | list):
        return [_argument(item) for item in argument]
    if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise CaptureError("a size of the model depends on data; monet plans fixed shapes")
    return argument


def _where(node: torch.fx.Node) -> str:
    """The last line of the user's code that made the node, if torch kept it."""
    trace: str | None = node.meta.get("stack_trace")
    if not trace:
        return ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return f" at {lines[-1]}" if lines else ""
