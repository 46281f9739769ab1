"""The forward pass of a model as a graph: traced by torch.export, or as Dynamo hands it over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.fx.experimental.proxy_tensor as proxy_tensor
import torch.utils._pytree as pytree
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from monet.capture.captured import device_type
from monet.capture.custom_functions import CustomFunctionFound, refusing_custom_functions, require_no_custom_functions
from monet.capture.decompositions import without_decompositions
from monet.capture.effects.attribute_writes import Observed, Write
from monet.capture.effects.module_changes import put_back
from monet.capture.export_errors import as_fake, fails_by_itself, reason, where, with_code, without_reports
from monet.capture.gradient_regions import keeping_no_grad
from monet.capture.lifted_graph import LiftedGraph
from monet.capture.rewriting.shared_casts import share_casts
from monet.capture.varying_inputs import is_symbol
from monet.errors import CaptureError

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


@dataclass(frozen=True)
class ForwardGraph:
    """A forward pass, as torch.export or Dynamo traced it. ``constants``: as in ``Captured``; they are buffers of
    ``module``, but for those that joining adds. ``in_spec``, ``out_spec``: the structure of inputs and outputs.
    ``cast_apart``, ``writes``: as in ``Captured``."""

    module: torch.fx.GraphModule
    constants: dict[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    cast_apart: str = ""
    writes: tuple[Write, ...] = ()


def forward_graph(model: torch.nn.Module, inputs: Inputs, *, detached: bool = False) -> ForwardGraph:
    """The forward pass of ``model`` as a graph, with the casts of eager's autocast. ``detached``: as in ``Observed``.

    Raises ``CaptureError`` with torch's reason, or where the values of tensors decide about a shape.
    """
    if not isinstance(model, LiftedGraph):
        return _export(model, inputs, _Checked(model, detached=detached))
    # Under autocast one call of Dynamo's graph may be several operators, some of which cast a weight. Which of them
    # share a copy is seen in torch.export's graph alone, where each is a node of its own.
    is_cast = model.casts or torch.is_autocast_enabled(device_type(model, inputs))
    return _export(model, inputs, None) if is_cast else _as_dynamo_has_it(model, inputs)


class _Checked(Observed):
    """Raises ``CustomFunctionFound``, too."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        require_no_custom_functions(outputs)
        return outputs


def _as_dynamo_has_it(model: LiftedGraph, inputs: Inputs) -> ForwardGraph:
    """The graph that Dynamo made, with the geometry that its values have for these inputs."""
    args, kwargs = inputs
    module = model.unlifted()
    constants = _promote_constants(module, model)
    try:
        with without_decompositions(), refusing_custom_functions(but_of_dynamo=True), without_reports():
            out = _Geometries(module, args).of(args)
    except CustomFunctionFound as error:
        raise CaptureError(str(error)) from error
    except Exception as error:  # whatever an operator raises
        raise CaptureError(reason("the graph of torch.compile cannot be traced", error)) from error
    for node in module.graph.nodes:
        check_tensor(node.name, node.meta.get("val"), node)
    return ForwardGraph(module, constants, pytree.tree_structure((args, kwargs)), pytree.tree_structure(out))


class _Geometries(torch.fx.Interpreter):
    """Notes the value of each node, a fake tensor, as ``val``, as torch.export does."""

    def __init__(self, module: torch.fx.GraphModule, args: Sequence[Any]) -> None:
        super().__init__(module)
        self._mode = detect_fake_mode(args) or FakeTensorMode()

    def of(self, args: Sequence[Any]) -> Any:
        """The result for such inputs."""
        with self._mode:
            return self.run(*(self._fake(value) for value in args))

    def _fake(self, value: Any) -> Any:
        return as_fake(value, self._mode)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._fake(super().get_attr(target, args, kwargs))

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["val"] = result
        return result


def _export(model: torch.nn.Module, inputs: Inputs, observed: Observed | None) -> ForwardGraph:
    args, kwargs = inputs
    traced = model if observed is None else observed
    try:
        with ExitStack() as stack:
            for context in (_autocast_as_written(), keeping_no_grad(), without_decompositions()):
                stack.enter_context(context)
            stack.enter_context(put_back(model, []))  # torch.export puts copies in place of lists and dictionaries
            stack.enter_context(refusing_custom_functions())
            stack.enter_context(without_reports())
            program = torch.export.export(traced, args, kwargs, strict=False)
            if observed is not None and not observed.found.is_checked:
                program = torch.export.export(traced, args, kwargs, strict=False)
        module = program.module(check_guards=False)
    except CustomFunctionFound as error:
        raise CaptureError(str(error)) from error
    except CaptureError:
        raise
    except Exception as error:  # torch.export raises many kinds
        own = fails_by_itself(model, args, kwargs, error)
        what = "the model fails on such inputs, planned or not" if own else "torch.export cannot trace the model"
        raise CaptureError(reason(what, error)) from error
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    if not isinstance(module, torch.fx.GraphModule):
        raise CaptureError("torch.export returned no graph")
    if in_spec is None or out_spec is None:
        raise CaptureError("torch.export recorded no structure of inputs and outputs")
    for node in module.graph.nodes:
        check_tensor(node.name, node.meta.get("val"), node)
    constants = _promote_constants(module, model)
    apart = share_casts(module, device_type(model, inputs))
    if observed is None:
        return ForwardGraph(module, constants, in_spec, out_spec, apart)
    return ForwardGraph(module, constants, in_spec, observed.found.out_spec or out_spec, apart, observed.found.writes)


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


def check_tensor(name: str, tensor: Any, node: torch.fx.Node | None = None) -> None:
    """Raises ``CaptureError`` where values decide how much memory a tensor takes, as they do for a sparse tensor or for
    a shape that is computed: a plan needs to know every tensor's memory. ``node``: what makes the tensor."""
    if not isinstance(tensor, torch.Tensor):
        return
    strided = tensor.layout is torch.strided
    if strided and all(isinstance(size, int) or is_symbol(size) for size in tensor.shape):
        return
    place = "" if node is None else where(node)
    if not strided:
        raise CaptureError(
            f"{name} is a tensor with layout {tensor.layout}, whose memory depends on the values in it; monet plans "
            f"dense tensors: make it dense (to_dense), or keep it outside of the planned module{place}"
        )
    error = CaptureError(
        f"the shape of {name} depends on the values of tensors; use torch.where, or decide it elsewhere"
        f"{with_code(place)}"
    )
    error.lines = "" if node is None else node.meta.get("stack_trace") or ""
    raise error


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
