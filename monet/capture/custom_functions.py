"""Finds ``torch.autograd.Function`` in a model. Its ``backward`` is the user's; where the forward pass is traced for
itself, the derivative of its ``forward`` would silently take its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

# They compute nothing: non-reentrant checkpointing keeps tensors with one.
_HARMLESS = {("torch.utils.checkpoint", "_NoopSaveInputs")}

# What torch makes of `register_autograd`: an operator keeps it as its derivative, in a trace too.
_REGISTERED = "torch._library.autograd"
# What Dynamo makes of one: both of its passes are graphs, and a trace of the two together has the user's own backward.
_TRACED = "torch._functorch.autograd_function"


class CustomFunctionFound(Exception):
    """Raised inside the trace; ``str`` is the reason, with what to do."""


@contextmanager
def refusing_custom_functions(*, but_of_dynamo: bool = False, both_passes: bool = False) -> Iterator[None]:
    """A context that raises ``CustomFunctionFound`` where the code inside applies a function of the user's to a tensor
    that requires a gradient. ``but_of_dynamo``: not where Dynamo has traced both of its passes. ``both_passes``: the
    trace is of both passes of everything, so that autograd calls the user's ``backward``; refused are checkpoints."""
    known = (_REGISTERED, _TRACED) if but_of_dynamo else (_REGISTERED,)
    real = torch.autograd.Function.__dict__["apply"]  # the class method itself, not bound to a class

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        harmless = _is_harmless(cls, known)
        tensors = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        traced = any(tensor.requires_grad for tensor in tensors) and torch.is_grad_enabled()
        if not harmless and ((traced and not both_passes) or issubclass(cls, CheckpointFunction)):
            raise CustomFunctionFound(_reason(cls))
        return real.__get__(None, cls)(*args, **kwargs)  # a descriptor of Python, or since torch 2.15 of C

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = real  # type: ignore[method-assign]


def require_no_custom_functions(outputs: Any) -> None:
    """Raises ``CustomFunctionFound`` where autograd has noted one for ``outputs``: code that kept ``apply`` before, as
    ``relu = MyReLU.apply``, is not seen by ``refusing_custom_functions``."""
    queue = [leaf.grad_fn for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    seen = set[Any]()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        cls = getattr(type(node), "_forward_cls", None)
        if cls is not None and not _is_harmless(cls, (_REGISTERED,)):
            raise CustomFunctionFound(_reason(cls))
        queue += [before for before, _ in node.next_functions]


def _is_harmless(cls: type[torch.autograd.Function], known: tuple[str, ...]) -> bool:
    return cls.__module__ in known or (cls.__module__, cls.__name__) in _HARMLESS


def _reason(cls: type[torch.autograd.Function]) -> str:
    if issubclass(cls, CheckpointFunction):
        return (
            "the model checkpoints with use_reentrant=True, which cannot be traced; use use_reentrant=False, or no "
            "checkpoint at all: the plan decides what is computed again"
        )
    return (
        f"the model applies {cls.__module__}.{cls.__qualname__}, a torch.autograd.Function, and its backward cannot be "
        "traced with the rest: in a model with recurrent layers or autocast inside, where autocast casts a weight for "
        "several uses, or where it depends on values; torch would take the derivative of its forward instead, and "
        "gradients would be other ones than eager's. Write it with operators, or register forward and backward as one "
        "(torch.library.custom_op and register_autograd)"
    )
