"""From a module and sample inputs to a ``Graph``: one joint graph of forward and backward aten operators.

check → join (``aot_export_joint_with_descriptors``: of the module itself, or of its forward pass as ``torch.export`` or
Dynamo has it) → read (``JointReader``)

Joining appends derivatives and removes mutation. All of it works on fake tensors, so no memory of the step is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.utils._pytree as pytree
from torch._functorch._aot_autograd.descriptors import BufferAOTInput
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from monet.base.graph import Graph
from monet.base.sizes import Ranges, Size, graph_at, larger_at, numbers_at
from monet.base.torch_versions import say_if_untested
from monet.capture.captured import Captured
from monet.capture.decompositions import without_decompositions
from monet.capture.direct_trace import direct_trace
from monet.capture.effects.attribute_writes import Observed, Write, has_memory_of_its_own
from monet.capture.effects.held_state import all_put_back
from monet.capture.export_errors import reason
from monet.capture.forward_graph import ForwardGraph, Inputs, check_tensor, forward_graph
from monet.capture.guards.caches_of_keys import without_caches_of_keys
from monet.capture.guards.module_hooks import as_planned
from monet.capture.islands.finding import ONE_KERNEL, one_kernel_layers, sparse_parameters
from monet.capture.islands.leaving_out import any_part, with_islands
from monet.capture.islands.sparse_gradients import with_elements_for_sparse
from monet.capture.joint_graph import JointReader, output_of
from monet.capture.kernel_geometry import kernels_own_geometry
from monet.capture.lifted_graph import LiftedGraph
from monet.capture.plain_tensors import require_not_lazy, require_plain
from monet.capture.rewriting.canonical_form import canonical
from monet.capture.rewriting.gradient_layout import with_own_layout
from monet.capture.rewriting.gradient_sums import sum_gradients_in_place
from monet.capture.value_checks import keeping_value_checks
from monet.capture.varying_inputs import NOT_FOR_A_RANGE, Symbols
from monet.errors import CaptureError

logger = logging.getLogger(__name__)

aten = torch.ops.aten
# torch.export puts the first before every cast; shapes, strides and dtypes of a plan are fixed anyway. The others look
# at data (classes of a one-hot encoding) and make nothing.
_CHECKS = {aten._assert_tensor_metadata.default, aten._assert_async.default, aten._assert_async.msg}


@kernels_own_geometry()
@keeping_value_checks()
@torch.enable_grad()  # whatever the caller is in: it is a training step
@unset_fake_temporarily()  # a mode around this call would meet the fake tensors of torch.export's own
def capture(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients_leave: bool = True,
    detached: bool = False,
    ranges: Ranges | None = None,
) -> Captured:
    """The training step of ``model`` on inputs shaped like ``args`` and ``kwargs``.

    The model is captured in the mode it is in, and in the state of autocast that is on; as eager should be, backward is
    then called outside of it. Inputs that require a gradient get one. Neither parameters nor buffers are changed.
    ``gradients_leave``: gradients are the caller's memory, in which they add up; else they are values like others, for
    operators of the step. ``detached``: so are tensors that the model assigns to attributes. Model and inputs may be
    fake (made under one ``FakeTensorMode``): then the largest model is captured without memory for it. ``ranges``:
    which sizes vary; the inputs are of the largest shape then, and the graph's sizes know what they are at others.
    Raises ``CaptureError`` with torch's reason and the line of the model where torch knows it.
    """
    say_if_untested()
    given: Inputs = (tuple(args), dict(kwargs or {}))
    _check(model, given)
    inputs = _with_own_memory(model, given)
    # What torch.compile hands over is a graph, which holds nothing else.
    around = nullcontext() if isinstance(model, LiftedGraph) else all_put_back(model)
    # No code is written for graphs that are only read.
    with around, _use_lazy_graph_module(True), as_planned(model), without_caches_of_keys(model):
        traced = _traced if ranges is None else partial(_over_ranges, ranges=ranges)
        trace = partial(traced, model, inputs, gradients_leave=gradients_leave, detached=detached)
        # An operator of the step takes a dense gradient.
        may_be = any_part if gradients_leave else _is_dense
        return with_islands(model, given, trace, ranges, may_be)


def _is_dense(module: torch.nn.Module) -> bool:
    return next(sparse_parameters(module), None) is None


def _traced(model: torch.nn.Module, inputs: Inputs, *, gradients_leave: bool, detached: bool) -> Captured:
    layers = one_kernel_layers(model)
    if layers:
        name = next(name for name, module in model.named_modules() if module is layers[0])
        raise CaptureError(
            f"{name or 'the model'} {ONE_KERNEL}, whose memory cannot be planned; to have its steps planned, plan and "
            "train under torch.backends.mkldnn.flags(enabled=False), which takes PyTorch's"
        )
    return _directly(model, inputs, gradients_leave=gradients_leave, detached=detached) or _read(
        _by_forward_graph(model, inputs, detached=detached), model, inputs, gradients_leave=gradients_leave
    )


def _check(model: torch.nn.Module, inputs: Inputs) -> None:
    """Raises ``CaptureError`` where a tensor has no memory that can be planned, or none requires a gradient."""
    require_plain(model, inputs)
    require_not_lazy(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        check_tensor(name, tensor)
        if tensor.device.type == "meta":
            raise CaptureError(
                f"{name} is on the meta device, where torch leaves gradients of some operators out; make the model and "
                "its inputs under torch._subclasses.FakeTensorMode(), which takes no memory either"
            )
    is_recurrent = any(isinstance(module, torch.nn.RNNBase) for module in model.modules())
    if is_recurrent and torch.nn.functional.linear is not torch._C._nn.linear:
        raise CaptureError(
            "torch.nn.functional.linear was replaced: tracing a recurrent layer calls it, and running one does not; "
            "put PyTorch's own back while the model is planned"
        )
    leaves = pytree.tree_leaves(inputs)
    for position, leaf in enumerate(leaves):
        check_tensor(f"input {position}", leaf)
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*model.parameters(), *leaves)):
        raise CaptureError("nothing to train: no parameter and no input of the model requires a gradient")


@dataclass(frozen=True)
class _Joint:
    """The joint graph of forward and backward, without torch's checks; the others as in ``Captured``."""

    graph: torch.fx.Graph
    constants: dict[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    cast_apart: str = ""
    writes: tuple[Write, ...] = ()


def _directly(model: torch.nn.Module, inputs: Inputs, *, gradients_leave: bool, detached: bool) -> Captured | None:
    """The capture from the model itself; None where it takes the long way, which also says what is wrong with it."""
    if isinstance(model, LiftedGraph):  # it is a forward graph
        return None
    found = direct_trace(model, *inputs, detached=detached, or_as_eager=True)
    if isinstance(found, str):
        return None
    try:
        joint = _joint_of(model, inputs, *found)
        return None if joint is None else _read(joint, model, inputs, gradients_leave=gradients_leave)
    except CaptureError as error:
        logger.info("the model is traced the long way: %s", error)
        return None


def _joint_of(
    model: torch.nn.Module, inputs: Inputs, traced: JointWithDescriptors, observed: Observed
) -> _Joint | None:
    """The joint graph of a direct trace; None where torch wants to rebuild an output. Raises ``CaptureError``."""
    constants: dict[str, torch.Tensor] = {}
    for node in traced.graph_module.graph.nodes:
        check_tensor(node.name, node.meta.get("val"), node)
    graph = _cleaned(traced, model, constants)
    if graph is None:
        return None
    out_spec = observed.found.out_spec or traced.out_spec
    return _Joint(graph, constants, pytree.tree_structure(inputs), out_spec, writes=observed.found.writes)


def _over_ranges(
    model: torch.nn.Module, inputs: Inputs, *, ranges: Ranges, gradients_leave: bool, detached: bool
) -> Captured:
    """The capture for all shapes of ``ranges``. Raises ``CaptureError`` where one graph does not hold for them."""
    why = NOT_FOR_A_RANGE
    symbols = Symbols(inputs, ranges)
    if isinstance(model, LiftedGraph) and model.casts:
        raise CaptureError(f"{why}: it comes from torch.compile, and has autocast inside")
    with symbols.general():
        found = direct_trace(model, *symbols.inputs, detached=detached)
    joint = None if isinstance(found, str) else _joint_of(model, symbols.inputs, *found)
    if isinstance(found, str) or joint is None:
        raise CaptureError(f"{why}: {found if isinstance(found, str) else 'an output is a view'}")
    held = symbols.ranges()
    if not held.contains(held.largest):
        raise CaptureError(f"{why}: it assumes {held.broken(held.largest)}")
    other = held.other()
    if other is None:
        guards = ", ".join(map(str, held.guards))
        raise CaptureError(f"{why}: it holds for the largest shape alone, since it assumes {guards}")
    varying = symbols, held, other
    captured = _read(joint, model, symbols.inputs, gradients_leave=gradients_leave, varying=varying)
    _check_sizes(captured.graph, held, why)
    return replace(captured, ranges=held)


def _check_sizes(graph: Graph, ranges: Ranges, why: str) -> None:
    """Raises ``CaptureError`` where some tensor is larger at a smaller shape: a plan's places are for the largest."""
    by_size = {
        value.storage_bytes.expression: (value.storage_bytes, value.name)
        for value in graph.values.values()
        if isinstance(value.storage_bytes, Size)
    }
    found = larger_at(ranges, [size for size, _ in by_size.values()])
    if found is None:
        return
    size, shape = found
    name = by_size[size.expression][1]
    makes = next((op for op in (*graph.forward, *graph.backward) if name in op.outputs), None)
    place = "" if makes is None or not makes.where else f"\n{makes.where}"
    at = "at some shape" if shape is None else "at " + ", ".join(f"{key} = {number}" for key, number in shape.items())
    raise CaptureError(f"{why}: {name} takes {size.expression} bytes, maybe more {at} than at the largest{place}")


def _check_form(read: Graph, graph: Graph, ranges: Ranges, other: Mapping[str, int], *, gradients_leave: bool) -> None:
    """Raises ``CaptureError`` where the canonical form rests on sizes that are equal at the largest shape alone.
    ``other``: another."""
    number_of = numbers_at(ranges, other)
    if graph_at(graph, number_of) != _in_form(graph_at(read, number_of), gradients_leave=gradients_leave):
        raise CaptureError(
            "the model cannot be planned for a range of shapes: sizes that are equal at the largest one by chance "
            f"decide how it is read; another maximum of {' or '.join(ranges.names)} may do, or plan each shape"
        )


def _in_form(graph: Graph, *, gradients_leave: bool) -> Graph:
    """In canonical form."""
    graph = canonical(graph)
    return with_own_layout(sum_gradients_in_place(graph)) if gradients_leave else graph


def _by_forward_graph(model: torch.nn.Module, inputs: Inputs, *, detached: bool) -> _Joint:
    """The joint graph of the forward pass's graph and its derivatives.

    Outputs that share memory are cloned first; every output is, where torch would else rebuild one from an intermediate
    outside the graph.
    """
    forward = forward_graph(model, inputs, detached=detached)
    for everything in (False, True):
        _separate_outputs(forward.module, everything=everything)
        graph = _joint_graph(forward, inputs)
        if graph is not None:
            return _Joint(
                graph, forward.constants, forward.in_spec, forward.out_spec, forward.cast_apart, forward.writes
            )
    raise CaptureError("an output of the model is a view that torch cannot separate; return a clone of it")


def _read(
    joint: _Joint,
    model: torch.nn.Module,
    inputs: Inputs,
    *,
    gradients_leave: bool,
    varying: tuple[Symbols, Ranges, Mapping[str, int]] | None = None,
) -> Captured:
    """The joint graph in canonical form, and what is needed to call it. ``varying``: what sizes that vary are in, their
    ranges, and another shape than the largest."""
    leaves = pytree.tree_leaves(inputs)
    literals = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    reader = JointReader(joint.graph, model, joint.constants, leaves, None if varying is None else varying[0])
    read = with_elements_for_sparse(reader.graph())
    graph = _in_form(read, gradients_leave=gradients_leave)
    if varying is not None:
        _check_form(read, graph, *varying[1:], gradients_leave=gradients_leave)
    return Captured(
        graph, joint.constants, joint.in_spec, joint.out_spec, literals, reader.output_literals, joint.cast_apart,
        joint.writes,
    )  # fmt: skip


def _with_own_memory(model: torch.nn.Module, inputs: Inputs) -> Inputs:
    """The inputs, each in memory of its own: an input that shares memory with another (a text and its labels), or that
    is a part of a larger tensor, is replaced by an empty one of the same geometry.

    Tracing would take two inputs that are one tensor for one input. A plan is for a geometry, not for shared memory.
    """
    taken = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        storage = leaf.untyped_storage()
        least = 1 + sum((n - 1) * s for n, s in zip(leaf.shape, leaf.stride(), strict=True)) if leaf.numel() else 0
        if storage._cdata not in taken and storage.nbytes() == least * leaf.itemsize:
            taken.add(storage._cdata)
            return leaf
        mode = leaf.fake_mode if isinstance(leaf, torch._subclasses.FakeTensor) else nullcontext()
        with mode:
            empty = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
        return empty.requires_grad_(leaf.requires_grad)

    own_inputs: Inputs = pytree.tree_map(own, inputs)
    return own_inputs


def _separate_outputs(module: torch.fx.GraphModule, *, everything: bool = False) -> None:
    """Clone outputs that share memory with an input, a parameter or another output, or hold more than they show.

    Autograd would give outputs that share memory one common gradient outside the graph; a copy has
    its own. A view of a part would keep the whole in memory for as long as the user keeps the output.
    ``everything``: clone every floating-point output.
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
        alone = has_memory_of_its_own(value, taken) and result.op not in ("placeholder", "get_attr")
        if not alone or (everything and value.dtype.is_floating_point):
            with graph.inserting_before(output):
                result = graph.call_function(aten.clone.default, (result,))
                result.meta["val"] = value.clone()
        replaced.append(result)
    output.args = (tuple(replaced),)
    graph.lint()
    module.recompile()


def _joint_graph(forward: ForwardGraph, inputs: Inputs) -> torch.fx.Graph | None:
    """The joint graph; None where torch wants to rebuild an output from an intermediate outside the graph."""
    args, kwargs = inputs
    try:
        with without_decompositions(), ExitStack() as stack:  # closes the fake-tensor mode before anything real runs
            stack.enter_context(functorch_config.patch(backward_pass_autocast="off"))
            joint = aot_export_joint_with_descriptors(stack, forward.module, args, kwargs)
    except Exception as error:
        raise CaptureError(reason("the backward pass cannot be traced", error)) from error
    return _cleaned(joint, forward.module, forward.constants)


def _cleaned(
    joint: JointWithDescriptors, module: torch.nn.Module, constants: dict[str, torch.Tensor]
) -> torch.fx.Graph | None:
    """The joint graph of ``module`` without checks, with all tensors it takes as inputs; adds to ``constants``. None
    where torch wants to rebuild an output from an intermediate outside the graph."""
    graph = joint.graph_module.graph
    descriptions = output_of(graph).meta["desc"]
    placeholders = [node.meta["desc"] for node in graph.nodes if node.op == "placeholder"]
    if any(type(d).__name__ == "IntermediateBaseAOTOutput" for d in descriptions):
        return None
    if any(type(d).__name__ in ("SyntheticBaseAOTInput", "ViewBaseAOTInput") for d in placeholders):
        raise CaptureError("two inputs of the model share memory; pass a clone of one of them")
    _constants_as_inputs(joint.graph_module, module, constants)
    for node in graph.nodes:
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif node.target is aten._efficientzerotensor.default:  # has no memory, as no planned tensor can be
            node.target = aten.zeros.default
    graph.eliminate_dead_code()
    return graph


def _constants_as_inputs(
    joint: torch.fx.GraphModule, module: torch.nn.Module, constants: dict[str, torch.Tensor]
) -> None:
    """Tensors that the traced code makes of numbers become ``constants`` of ``module``, which enter as inputs."""
    first = next(node for node in joint.graph.nodes if node.op != "placeholder")
    for node in joint.graph.find_nodes(op="get_attr"):
        tensor = getattr(joint, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            continue
        name = f"number_{len(constants)}"
        while hasattr(module, name):
            name += "_"
        constants[name] = tensor
        with joint.graph.inserting_before(first):
            source = joint.graph.placeholder(name)
        source.meta = {"val": node.meta["val"], "desc": BufferAOTInput(name)}
        node.replace_all_uses_with(source)
        joint.graph.erase_node(node)
    for node in joint.graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default):
        node.target = aten.clone.default
