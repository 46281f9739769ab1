"""Forward and backward traced in one go, from the model itself.

``torch.export`` traces the forward pass first, for what its graph alone shows: weights that autocast casts, tensors
that are plain attributes, outputs that share memory. A model with none of these has the same joint graph without it, in
about 60 % of the time. Where a model does what only the long way traces as eager runs it, or where anything fails, the
answer is the reason: what is allowed, and how an error reads, is decided on the long way alone.
"""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import _lru_cache_wrapper
from types import FrameType
from typing import Any, Self, TypeAlias

import torch
import torch._functorch.config as functorch_config
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch._export.utils import _compiling_state_context
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.symbolic_shapes import uninteresting_files
from torch.overrides import TorchFunctionMode

from monet.base.live_objects import live_objects
from monet.capture.captured import device_type
from monet.capture.custom_functions import refusing_custom_functions
from monet.capture.decompositions import without_decompositions
from monet.capture.effects.attribute_writes import Observed, has_memory_of_its_own, inner
from monet.capture.effects.python_random import random_state, set_random_state
from monet.capture.export_errors import reason, without_reports
from monet.capture.islands.finding import HAS_RECURRENT_LAYERS
from monet.capture.islands.standing import traced_modules
from monet.errors import MonetError

logger = logging.getLogger(__name__)

_Place: TypeAlias = tuple[dict[str, Any], str]
"""A tensor's, among a module's parameters or buffers."""

# What reaches into autograd from within a forward pass.
_data, _requires_grad = vars(torch._C.TensorBase)["data"], vars(torch._C.TensorBase)["requires_grad"]
_OF_AUTOGRAD = {
    torch.Tensor.register_hook, torch.Tensor.retain_grad, torch.Tensor.requires_grad_, torch.Tensor.backward,
    torch.autograd.grad, torch.autograd.backward, _requires_grad.__set__, _data.__get__, _data.__set__,
}  # fmt: skip


_TRACED = (FunctionalTensor, FakeTensor)


class _LongWay(Exception):
    """``str`` is why the model is to be traced the long way."""


def direct_trace(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    detached: bool = False,
    as_eager: bool = False,
    or_as_eager: bool = False,
) -> tuple[JointWithDescriptors, Observed] | str:
    """The joint graph of ``model``, as ``aot_export_joint_with_descriptors`` has it of what torch.export makes of it,
    and what it assigns (``detached``: as in ``Observed``); where the two might differ, or where the model cannot be
    traced, why. ``as_eager``: code that asks whether it is compiled is told that it is not. ``or_as_eager``: once more
    in that way where the model fails: some leave out in a trace what they cannot do without, as their masks."""
    if any(isinstance(module, torch.nn.RNNBase) for module in traced_modules(model)):
        # It holds its weights in a list, too, which it fills anew when one is put in place.
        return f"the model {HAS_RECURRENT_LAYERS}"
    randomness = random_state()
    try:
        with ExitStack() as stack:
            stack.enter_context(_put_back_after(model))
            for context in (without_decompositions(), refusing_custom_functions(both_passes=True), without_reports()):
                stack.enter_context(context)
            if not as_eager:
                stack.enter_context(_compiling_state_context())  # what models ask for is as in torch.export
            stack.enter_context(functorch_config.patch(backward_pass_autocast="off"))
            written = stack.enter_context(_Written())
            traced = _Traced(model, written, detached=detached)
            joint = aot_export_joint_with_descriptors(
                stack, traced, tuple(args), dict(kwargs), _disable_torch_fn_metadata_mode=True
            )
        constants = (
            getattr(joint.graph_module, str(n.target)) for n in joint.graph_module.graph.find_nodes(op="get_attr")
        )
        if any(isinstance(constant, _TRACED) for constant in constants):
            raise _LongWay("the model keeps a tensor from one call to the next")
        if torch.is_autocast_enabled(device_type(model, (args, kwargs))) and _casts_twice(joint.graph_module.graph):
            raise _LongWay("autocast casts a weight for several uses, which share the copy in eager's cache")
        if not traced.found.is_checked:
            raise _LongWay("it is not known what the model reads that it assigns")
    except Exception as error:  # whatever the model raises
        logger.debug("the model is traced the long way: %s: %s", type(error).__name__, error)
        set_random_state(randomness)
        _forget_cached()
        if not or_as_eager or isinstance(error, (_LongWay, MonetError)):
            plain = isinstance(error, (_LongWay, MonetError))
            return str(error) if plain else reason("it cannot be traced", error)
    else:
        written.write()
        return joint, traced
    return direct_trace(model, args, kwargs, detached=detached, as_eager=True)


def _casts_twice(graph: torch.fx.Graph) -> bool:
    """Whether a parameter or an input is cast to one dtype more than once."""
    seen = set[Any]()
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        cast = node.args[0], node.kwargs.get("dtype")
        if isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "placeholder":
            if cast in seen:
                return True
            seen.add(cast)
    return False


class _Written(ExitStack):
    """A context that keeps what the model writes: tracing calls it more than once."""

    def __enter__(self) -> Self:
        self._out, self._error = io.StringIO(), io.StringIO()
        self.enter_context(redirect_stdout(self._out))
        self.enter_context(redirect_stderr(self._error))
        return self

    def forget(self) -> None:
        for kept in (self._out, self._error):
            kept.seek(0)
            kept.truncate()

    def write(self) -> None:
        """After the context: what was written since ``forget``."""
        sys.stdout.write(self._out.getvalue())
        sys.stderr.write(self._error.getvalue())


class _Traced(Observed):
    """``model``, called as torch.export calls it, once for each time that torch traces it. Raises ``_LongWay``."""

    def __init__(self, model: torch.nn.Module, written: _Written, *, detached: bool) -> None:
        super().__init__(model, detached=detached)
        self._tied = _tied(model)
        self._written = written
        self._has_own_outputs = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._written.forget()
        with _tied_again(self._tied), _same_members(self), _refusing(), _Lines():
            outputs = super().forward(*args, **kwargs)
        if fx_traceback.has_preserved_node_meta():
            fx_traceback.set_stack_trace([])
        if not self._has_own_outputs:
            self._has_own_outputs = True
            _check_outputs(outputs, (*self.parameters(), *self.buffers(), *pytree.tree_leaves((args, kwargs))))
        return outputs


class _Lines(TorchFunctionMode):
    """Notes for each call of torch which line makes it, as torch.export does: the last one that is of a ``forward``.
    The operators of the backward pass get the lines of what they derive."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OF_AUTOGRAD:
            raise _LongWay(f"the forward pass calls {func}")
        if fx_traceback.has_preserved_node_meta():
            fx_traceback.set_stack_trace([_line(sys._getframe(1))])
        return func(*args, **(kwargs or {}))


def _line(frame: FrameType | None) -> str:
    others = uninteresting_files()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_filename not in others:
            return f'File "{code.co_filename}", line {frame.f_lineno}, in forward\n'
        frame = frame.f_back
    return ""


@contextmanager
def _refusing() -> Iterator[None]:
    """A context that raises ``_LongWay`` where autocast is turned on, or what is kept for the backward pass is not the
    tensors themselves: a checkpoint would be computed again within the trace."""
    enter_autocast, enter_hooks = torch.autocast.__enter__, saved_tensors_hooks.__enter__
    here = threading.get_ident()

    def autocast(self: torch.autocast) -> Any:
        if self._enabled and threading.get_ident() == here:
            raise _LongWay("autocast in the model")
        return enter_autocast(self)  # type: ignore[no-untyped-call]

    def hooks(self: saved_tensors_hooks) -> None:
        if threading.get_ident() == here:
            raise _LongWay("hooks on saved tensors")
        enter_hooks(self)

    torch.autocast.__enter__ = autocast  # type: ignore[method-assign]
    saved_tensors_hooks.__enter__ = hooks  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter_autocast  # type: ignore[method-assign]
        saved_tensors_hooks.__enter__ = enter_hooks  # type: ignore[method-assign]


@contextmanager
def _same_members(model: torch.nn.Module) -> Iterator[None]:
    """A context that raises ``_LongWay`` where a module has other parameters or buffers after it than before."""
    members = [of for module in model.modules() for of in (module._parameters, module._buffers)]
    before = [dict(of) for of in members]
    yield
    for of, held in zip(members, before, strict=True):
        if of.keys() != held.keys() or any(of[key] is not held[key] for key in held):
            raise _LongWay("the forward pass replaces a parameter or a buffer")


def _forget_cached() -> None:
    """Clear the caches of functions (``functools.lru_cache``) that hold tensors of a trace: the next trace can use none
    of them."""
    for cache in live_objects():
        if type(cache) is _lru_cache_wrapper:
            held = gc.get_referents(cache)  # results, or a dictionary of them
            for _ in range(2):
                held += gc.get_referents(*held)
            kinds = set(map(type, held))  # a few, of hundreds of thousands of things
            if any(issubclass(kind, _TRACED) for kind in kinds):
                cache.cache_clear()


@contextmanager
def _put_back_after(model: torch.nn.Module) -> Iterator[None]:
    """A context after which the modules hold the parameters and buffers of before."""
    members = [of for module in model.modules() for of in (module._parameters, module._buffers)]
    before = [dict(of) for of in members]
    lists = [module._flat_weights for module in model.modules() if isinstance(module, torch.nn.RNNBase)]
    weights = [list(of) for of in lists]
    try:
        yield
    finally:
        for listed, own in zip(lists, weights, strict=True):
            listed[:] = own
        for of, held in zip(members, before, strict=True):
            of.clear()
            of.update(held)  # type: ignore[arg-type]


def _tied(model: torch.nn.Module) -> list[list[_Place]]:
    """The places of each parameter or buffer that has several, in order."""
    places: dict[int, list[_Place]] = {}
    for module in model.modules():
        for members in (module._parameters, module._buffers):
            for key, tensor in members.items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((members, key))
    return [of for of in places.values() if len(of) > 1]


@contextmanager
def _tied_again(tied: Sequence[Sequence[_Place]]) -> Iterator[None]:
    """A context in which one tensor is in all places again: tracing puts one for each name there. It is the last one's,
    as in torch.export's graph, so that all gradients add up in that one."""
    before = [(members, key, members[key]) for places in tied for members, key in places]
    for places in tied:
        last, name = places[-1]
        for members, key in places:
            members[key] = last[name]
    try:
        yield
    finally:
        for members, key, tensor in before:
            members[key] = tensor


def _check_outputs(outputs: Any, held: Sequence[Any]) -> None:
    """Raises ``_LongWay`` for an output that shares memory with ``held`` or another, or is a part of a larger one."""
    taken = {inner(tensor).untyped_storage()._cdata for tensor in held if isinstance(tensor, torch.Tensor)}
    for output in pytree.tree_leaves(outputs):
        if isinstance(output, torch.Tensor) and not has_memory_of_its_own(inner(output), taken):
            raise _LongWay("an output shares memory with another tensor")
