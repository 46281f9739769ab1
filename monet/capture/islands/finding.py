"""Which modules an error of tracing is about."""

from __future__ import annotations

import inspect
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from monet.capture.effects.given_containers import given_anew
from monet.capture.guards.module_hooks import HOOK_ADVICE
from monet.capture.islands.standing import traced_modules
from monet.capture.islands.state import as_before
from monet.errors import CaptureError

logger = logging.getLogger(__name__)

Parts: TypeAlias = Mapping[int, torch.nn.Module]
"""By ``id``, the modules of a model but for itself."""

_FORWARDS = (torch.nn.LSTM.forward, torch.nn.GRU.forward, torch.nn.RNN.forward)
HAS_RECURRENT_LAYERS = "has recurrent layers, whose steps are as many as a sequence has"
ONE_KERNEL = "is oneDNN's own LSTM"
_OF_SPARSE = ("whose memory depends on the values in it", "the backward pass cannot be traced")
"""What is said of the sparse gradient of an embedding, and of that of an embedding bag."""
_OF_VALUES = ("depends on the values", "depends on data", "data-dependent")
_AVOIDED = (*_OF_VALUES, "cannot trace the model", "cannot be traced")
"""What an error says that a module which runs as it is does not meet."""
_NOT_AVOIDED = ("random numbers of Python", "use_reentrant", "torch.nn.functional.linear", HOOK_ADVICE)
"""What has an advice that is better, or that an island would meet, too."""
_QUOTED = re.compile(r"\n  at File .*")
"""The model's own line, which may have any of these words."""
_LINE = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>\S+?):?(\s|$)')


def is_plain(module: torch.nn.Module) -> bool:
    """Whether it is a recurrent layer as PyTorch has it, with weights that are parameters: each of these has a gradient
    in every step. Others may choose among theirs, or make them elsewhere (weight norm, weight dropout)."""
    if not isinstance(module, torch.nn.RNNBase) or type(module).forward not in _FORWARDS:
        return False
    return all(isinstance(module._parameters.get(name), torch.nn.Parameter) for name in module._flat_weights_names)


def sparse_parameters(module: torch.nn.Module) -> Iterator[str]:
    """Names of those whose gradients are sparse."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) and part.sparse:
            yield f"{name}.weight".removeprefix(".")


def one_kernel_layers(model: torch.nn.Module) -> list[torch.nn.LSTM]:
    """Layers that eager runs as one kernel of oneDNN, and a trace as steps of a sequence, with other roundings. None of
    a model without memory of its own: what is traced of it is not run."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return []
    layers = [layer for layer in traced_modules(model) if isinstance(layer, torch.nn.LSTM) and is_plain(layer)]
    weights = {layer: layer._parameters["weight_hh_l0"] for layer in layers}
    return [
        layer
        for layer, weight in weights.items()
        if not layer.proj_size
        and weight is not None
        and weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not isinstance(weight, FakeTensor)
    ]


def modules_to_leave(
    model: torch.nn.Module,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    error: CaptureError,
    left: Sequence[torch.nn.Module] = (),
) -> list[torch.nn.Module]:
    """The parts of ``model`` in which it cannot be traced; empty where that is the model itself, or where leaving a
    part out would not help. ``inputs``: real ones; ``left``: the parts that were left out when it failed."""
    said = _QUOTED.sub("", str(error))
    if HAS_RECURRENT_LAYERS in said:
        return [part for part in model.modules() if is_plain(part) and part not in {model, *left}]
    if ONE_KERNEL in said:
        return [part for part in one_kernel_layers(model) if part is not model]
    if any(text in said for text in _OF_SPARSE):
        others = (part for part in model.modules() if part is not model and part not in left)
        kinds = torch.nn.Embedding | torch.nn.EmbeddingBag
        tables: list[torch.nn.Module] = [part for part in others if isinstance(part, kinds) and part.sparse]
        if tables:
            return tables
    if not any(text in said for text in _AVOIDED) or any(text in said for text in _NOT_AVOIDED):
        return []
    known = {id(part) for module in left for part in module.modules()}
    parts = {id(module): module for module in model.modules() if module is not model and id(module) not in known}
    found = _running(error, parts) or _of_lines(error, parts)
    if found is None or any(text in said for text in _OF_VALUES):
        # It may come later than its cause: of a size that is known by then as one that depends on values.
        looking = _looking_at_values(model, inputs, parts)
        within = set[int]() if found is None else {id(part) for part in found.modules()}
        causes = [part for part in looking if all(inner is not found for inner in part.modules())]
        if found is None or (causes and not any(id(part) in within for part in looking)):
            return causes
    if type(found).__module__.startswith("torch.nn."):  # a container says nothing of what is in others
        return [found]
    return [module for module in parts.values() if type(module) is type(found)]


def _running(error: BaseException, parts: Parts) -> torch.nn.Module | None:
    """The innermost module that was running when the first error was raised."""
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    frames = [frame for frame, _ in traceback.walk_tb(first.__traceback__)]
    return next((part for frame in reversed(frames) if (part := _owner(frame, parts)) is not None), None)


def _owner(frame: FrameType, parts: Parts) -> torch.nn.Module | None:
    """The module that a frame's function is called with."""
    names = frame.f_code.co_varnames
    return parts.get(id(frame.f_locals.get(names[0]))) if names else None


def _of_lines(error: CaptureError, parts: Parts) -> torch.nn.Module | None:
    """The first module that has one of the lines which the error names in its class: of the innermost such line."""
    lines = [match for match in _LINE.finditer(error.lines or str(error))]
    for match in reversed(lines):
        for module in parts.values():
            if any(_has(code, match["file"], int(match["line"])) for code in _codes(type(module))):
                return module
    return None


def _codes(cls: type) -> Iterator[CodeType]:
    """Of the methods that a user's class has, its bases' included, but for those of every module."""
    for base in cls.__mro__:
        if base in (torch.nn.Module, object):
            continue
        for member in vars(base).values():
            function = inspect.unwrap(member) if callable(member) else None
            if isinstance(function, FunctionType):
                yield function.__code__


def _has(code: CodeType, file: str, line: int) -> bool:
    return code.co_filename == file and line in _lines(code)


def _looking_at_values(
    model: torch.nn.Module, inputs: tuple[Sequence[Any], Mapping[str, Any]], parts: Parts
) -> list[torch.nn.Module]:
    """The parts that make Python numbers or shapes of the values of tensors."""
    if any(isinstance(leaf, FakeTensor) for leaf in pytree.tree_leaves([*model.parameters(), inputs])):
        return []
    watch = _Watch(parts)
    try:
        with as_before(model), torch.no_grad(), watch:
            given = given_anew(*inputs)
            model(*given[0], **given[1])
    except Exception as error:  # whatever the model raises
        logger.info("it is not known where the model looks at values: %s", error)
        return []
    return list(watch.found.values())


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, parts: Parts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, torch.nn.Module] = {}
        self._parts = parts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _by_values(func, args):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and (part := _owner(frame, self._parts)) is None:
                frame = frame.f_back
            if frame is not None and part is not None:
                self.found[id(part)] = part
        return func(*args, **(kwargs or {}))


def _by_values(func: Any, args: Any) -> bool:
    """Whether an operator's result is a number, or of a shape, that values decide."""
    if func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default):
        return any(isinstance(t, torch.Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    tags = getattr(func, "tags", ())  # torch.cond and its like have none
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def _lines(code: CodeType) -> set[int]:
    inner = (_lines(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {line for *_, line in code.co_lines() if line is not None}.union(*inner)
