"""From a module and sample inputs to a ``Graph``: one joint graph of forward and backward aten operators.

check → export (``torch.export``) → join (``aot_export_joint_with_descriptors``) → read (``JointReader``)

Exporting traces the module, joining appends its derivatives and removes mutation. Both work on fake tensors, so no
memory of the step is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch._functorch.config as functorch_config
import torch.fx.experimental.proxy_tensor as proxy_tensor
import torch.utils._pytree as pytree
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import unset_fake_temporarily

from monet.capture.canonical_form import canonical
from monet.capture.captured import Captured, device_type
from monet.capture.custom_functions import CustomFunctionFound, refusing_custom_functions
from monet.capture.decompositions import without_decompositions
from monet.capture.export_errors import reason, where, with_code, without_reports
from monet.capture.gradient_layout import with_own_layout
from monet.capture.gradient_sums import sum_gradients_in_place
from monet.capture.joint_graph import JointReader, output_of
from monet.capture.kernel_geometry import kernels_own_geometry
from monet.capture.plain_tensors import require_plain
from monet.capture.shared_casts import share_casts
from monet.errors import CaptureError

aten = torch.ops.aten
Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""
# torch.export puts the first before every cast; shapes, strides and dtypes of a plan are fixed anyway. The others look
# at data (classes of a one-hot encoding) and make nothing.
_CHECKS = {aten._assert_tensor_metadata.default, aten._assert_async.default, aten._assert_async.msg}


@dataclass(frozen=True)
class _Exported:
    """The forward pass as torch.export traced it. ``constants``: as in ``Captured``; they are buffers of ``module``.
    ``in_spec``, ``out_spec``: the structure of inputs and outputs."""

    module: torch.fx.GraphModule
    constants: Mapping[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec


@kernels_own_geometry()
@torch.enable_grad()  # whatever the caller is in: it is a training step
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
    given: Inputs = (tuple(args), dict(kwargs or {}))
    _check(model, given)
    inputs = _with_own_memory(model, given)
    exported = _export(model, inputs)
    joint = _join(exported.module, inputs)
    return _read(joint, exported, model, inputs, gradients_leave=gradients_leave)


def _check(model: torch.nn.Module, inputs: Inputs) -> None:
    """Raises ``CaptureError`` where a tensor has no memory that can be planned, or none requires a gradient."""
    require_plain(model, inputs)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_tensor(name, tensor)
        if tensor.device.type == "meta":
            raise CaptureError(
                f"{name} is on the meta device, where torch leaves gradients of some operators out; make the model and "
                "its inputs under torch._subclasses.FakeTensorMode(), which takes no memory either"
            )
    leaves = pytree.tree_leaves(inputs)
    for position, leaf in enumerate(leaves):
        _check_tensor(f"input {position}", leaf)
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in (*model.parameters(), *leaves)):
        raise CaptureError("nothing to train: no parameter and no input of the model requires a gradient")


def _export(model: torch.nn.Module, inputs: Inputs) -> _Exported:
    """The forward pass as torch.export traces it, with the casts of eager's autocast.

    Raises ``CaptureError`` with torch's reason, or where the values of tensors decide about a shape.
    """
    args, kwargs = inputs
    try:
        with _autocast_as_written(), without_decompositions(), refusing_custom_functions(), without_reports():
            program = torch.export.export(model, args, kwargs, strict=False)
        module = program.module(check_guards=False)
    except CustomFunctionFound as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # torch.export raises many kinds
        raise CaptureError(reason("torch.export cannot trace the model", error)) from error
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    if not isinstance(module, torch.fx.GraphModule):
        raise CaptureError("torch.export returned no graph")
    if in_spec is None or out_spec is None:
        raise CaptureError("torch.export recorded no structure of inputs and outputs")
    for node in module.graph.nodes:
        _check_tensor(node.name, node.meta.get("val"), node)
    constants = _promote_constants(module, model)
    share_casts(module, device_type(model, inputs))
    return _Exported(module, constants, in_spec, out_spec)


def _join(module: torch.fx.GraphModule, inputs: Inputs) -> torch.fx.Graph:
    """The joint graph of the forward pass and its derivatives.

    Outputs that share memory are cloned first; every output is, where torch would else rebuild one from an intermediate
    outside the graph.
    """
    for everything in (False, True):
        _separate_outputs(module, everything=everything)
        joint = _joint_graph(module, inputs)
        if joint is not None:
            return joint
    raise CaptureError("an output of the model is a view that torch cannot separate; return a clone of it")


def _read(
    joint: torch.fx.Graph, exported: _Exported, model: torch.nn.Module, inputs: Inputs, *, gradients_leave: bool
) -> Captured:
    """The joint graph in canonical form, and what is needed to call it."""
    leaves = pytree.tree_leaves(inputs)
    literals = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    reader = JointReader(joint, model, exported.constants, leaves)
    graph = canonical(reader.graph())
    if gradients_leave:
        graph = with_own_layout(sum_gradients_in_place(graph))
    return Captured(graph, exported.constants, exported.in_spec, exported.out_spec, literals, reader.output_literals)


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


@contextmanager
def _autocast_as_written() -> Iterator[None]:
    """A context in which tracing leaves autocast's cache as the model has it.

    Tracing would turn the cache off, and write down for each ``with torch.autocast`` in the model that it is off.
    ``share_casts`` then does what the cache does.
    """
    real = proxy_tensor.disable_autocast_cache
    proxy_tensor.disable_autocast_cache = nullcontext  # type: ignore[assignment]
    try:
        yield
    finally:
        proxy_tensor.disable_autocast_cache = real
        torch.clear_autocast_cache()  # of fake tensors


def _check_tensor(name: str, tensor: Any, node: torch.fx.Node | None = None) -> None:
    """Raises ``CaptureError`` where values decide how much memory a tensor takes, as they do for a sparse tensor or for
    a shape that is computed: a plan needs to know every tensor's memory. ``node``: what makes the tensor."""
    if not isinstance(tensor, torch.Tensor):
        return
    strided = tensor.layout is torch.strided
    if strided and all(isinstance(size, int) for size in tensor.shape):
        return
    place = "" if node is None else where(node)
    if not strided:
        raise CaptureError(
            f"{name} is a tensor with layout {tensor.layout}, whose memory depends on the values in it; monet plans "
            f"dense tensors: make it dense (to_dense), or keep it outside of the planned module{place}"
        )
    raise CaptureError(
        f"the shape of {name} depends on the values of tensors; use torch.where, or decide it elsewhere"
        f"{with_code(place)}"
    )


def _promote_constants(module: torch.fx.GraphModule, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that are plain attributes of the traced module, by target. They become buffers of it, so that they
    enter as inputs."""
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


def _joint_graph(module: torch.fx.GraphModule, inputs: Inputs) -> torch.fx.Graph | None:
    """The joint graph; None where torch wants to rebuild an output from an intermediate outside the graph."""
    args, kwargs = inputs
    try:
        with without_decompositions(), ExitStack() as stack:  # closes the fake-tensor mode before anything real runs
            stack.enter_context(functorch_config.patch(backward_pass_autocast="off"))
            joint = aot_export_joint_with_descriptors(stack, module, args, kwargs)
            graph = joint.graph_module.graph
    except Exception as error:
        raise CaptureError(reason("the backward pass cannot be traced", error)) from error
    descriptions = output_of(graph).meta["desc"]
    placeholders = [node.meta["desc"] for node in graph.nodes if node.op == "placeholder"]
    if any(type(d).__name__ == "IntermediateBaseAOTOutput" for d in descriptions):
        return None
    if any(type(d).__name__ in ("SyntheticBaseAOTInput", "ViewBaseAOTInput") for d in placeholders):
        raise CaptureError("two inputs of the model share memory; pass a clone of one of them")
    for node in graph.nodes:
        if node.target in _CHECKS:
            graph.erase_node(node)
        elif node.target is aten._efficientzerotensor.default:  # has no memory, as no planned tensor can be
            node.target = aten.zeros.default
    graph.eliminate_dead_code()
    return graph
