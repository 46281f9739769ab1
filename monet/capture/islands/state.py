"""A call of a model: its tensors and the rest, its situation, and what it leaves behind, put back."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.autograd.graph import saved_tensors_hooks

from monet.base.sizes import Ranges
from monet.capture.effects.module_changes import put_back, same_buffers

Described = tuple[tuple[torch.dtype, tuple[int, ...]], ...]
"""Dtypes and shapes of tensors."""


def number_of(size: Any) -> int:
    """A size of a tensor, without a condition on it: of one that varies what it is at the largest shape, of one that
    values decide −1."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint
    return -1 if hint is None else int(hint)


def parted(tree: Any) -> tuple[list[torch.Tensor], dict[int, Any], pytree.TreeSpec]:
    """The tensors of a tree, its other leaves by their positions, and its structure."""
    leaves, spec = pytree.tree_flatten(tree)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors, {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}, spec


def described(tensors: Sequence[torch.Tensor]) -> Described:
    return tuple((tensor.dtype, tuple(map(number_of, tensor.shape))) for tensor in tensors)


def situation(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges | None
) -> tuple[Any, ...]:
    """What islands are for: the model's parts and modes, the precision, the geometry of the call and what varies."""
    tensors, literals, spec = parted((tuple(args), dict(kwargs)))
    parts = tuple((id(module), module.training) for module in model.modules())
    taking = tuple(tensor.requires_grad for tensor in (*model.parameters(), *tensors))
    precision = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return parts, taking, precision, str(spec), described(tensors), repr(literals), repr(ranges)


def keeping_nothing() -> saved_tensors_hooks:
    """A context in which operators keep no tensor for a backward pass, which never runs."""
    return saved_tensors_hooks(_nothing, _nothing)


def _nothing(_: Any) -> Any:
    """Of a tensor that is to be kept."""


@contextmanager
def as_before(model: torch.nn.Module) -> Iterator[None]:
    """A context after which the model's buffers and attributes and torch's generator are as before it."""
    written = io.StringIO()  # the trace has written the same
    with ExitStack() as stack:
        for context in (redirect_stdout(written), redirect_stderr(written), same_buffers(model), put_back(model, [])):
            stack.enter_context(context)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        yield
