"""From a module and sample inputs to a ``Graph``: one joint graph of forward and backward aten operators.

``torch.export`` traces the module, ``aot_export_joint_with_descriptors`` appends its derivatives and
removes mutation; both work on fake tensors, so no memory of the step is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

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
from monet.capture.gradient_sums import sum_gradients_in_place
from monet.capture.joint_graph import JointReader, output_of
from monet.capture.kernel_geometry import kernels_own_geometry
from monet.capture.shared_casts import share_casts
from monet.errors import CaptureError

aten = torch.ops.aten
# torch.export puts the first before every cast; shapes, strides and dtypes of a plan are fixed anyway. The others look
# at data (classes of a one-hot encoding) and make nothing.
_CHECKS = {aten._assert_tensor_metadata.default, aten._assert_async.default, aten._assert_async.msg}


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
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check(name, tensor)
        if tensor.device.type == "meta":
            raise CaptureError(
                f"{name} is on the meta device, where torch leaves gradients of some operators out; make the model and "
                "its inputs under torch._subclasses.FakeTensorMode(), which takes no memory either"
            )
    for position, leaf in enumerate(pytree.tree_leaves((tuple(args), dict(kwargs or {})))):
        _check(f"input {position}", leaf)
    args, kwargs = _with_own_memory(model, tuple(args), dict(kwargs or {}))
    if not any(p.requires_grad for p in model.parameters()) and not any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in pytree.tree_leaves((args, kwargs))
    ):
        raise CaptureError("nothing to train: no parameter and no input of the model requires a gradient")
    try:
        with _autocast_as_written(), without_decompositions(), refusing_custom_functions(), without_reports():
            program = torch.export.export(model, args, kwargs, strict=False)
        module = program.module(check_guards=False)
    except CustomFunctionFound as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # torch.export raises many kinds
        raise CaptureError(reason("torch.export cannot trace the model", error)) from error
    if not isinstance(module, torch.fx.GraphModule):
        raise CaptureError("torch.export returned no graph")
    for node in module.graph.nodes:
        _check(node.name, node.meta.get("val"), node)
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
    reader = JointReader(joint, model, constants, leaves)
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
        if not isinstance(leaf, torch.Tensor):
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


def _check(name: str, tensor: Any, node: torch.fx.Node | None = None) -> None:
    """A plan needs to know the memory of every tensor. Raises ``CaptureError`` where values decide about it: of a
    sparse tensor, which is several blocks, or a part whose size is computed. ``node``: what makes it."""
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
