"""Caches of keys and values of transformers, which are for generating."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from monet.capture.export_errors import run_on_fakes
from monet.capture.guards.module_changes import put_back, same_buffers
from monet.errors import CaptureError

logger = logging.getLogger(__name__)


@contextmanager
def without_caches_of_keys(model: torch.nn.Module) -> Iterator[bool]:
    """A context in which models of transformers make no cache of keys and values: an object that no plan can hold and
    that training does not need. Whether they would."""
    configs: list[Any] = [module.__dict__.get("config") for module in model.modules()]
    changed = {id(config): config for config in configs if getattr(config, "use_cache", None) is True}
    for config in changed.values():
        config.use_cache = False
    try:
        yield bool(changed)
    finally:
        for config in changed.values():
            config.use_cache = True


def require_same_without_caches(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises ``CaptureError`` where the model is another one without the cache that it is configured to make: it reads
    what it has cached in the same forward pass, or masks nothing where it makes one.

    The operators of both are compared without memory; only where they differ, or depend on values, the two forward
    passes are run, without gradients, and their outputs compared. That is left out for fake tensors, where the inputs
    are nothing that the model takes (a geometry alone), and on a GPU, which such inputs may end the use of."""
    written = io.StringIO()  # the trace has shown what the model writes
    with redirect_stdout(written), redirect_stderr(written):
        is_another = _calls_others(model, args, kwargs) and _returns_others(model, args, kwargs)
    if is_another:
        raise CaptureError(
            "no plan can hold the model's cache of keys and values, and without it the model's outputs are others. "
            "Check its configuration (a layer that runs twice needs two places in the cache), or set "
            "model.config.use_cache = False, which eager PyTorch then heeds, too"
        )


def _calls_others(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the model calls, without a cache, an operator on shapes that it does not call it on with one; True where
    values decide that."""
    try:
        without, made = (_calls(model, args, kwargs, made=made) for made in (False, True))
    except Exception as error:  # whatever the model raises of fake tensors
        logger.debug("the operators with and without a cache are not known: %s", error)
        return True
    return bool(without - made)


def _calls(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, made: bool
) -> Counter[tuple[str, str]]:
    """The operators of a forward pass with and without a cache, and the shapes that each is called on."""
    found = _Calls()
    with nullcontext() if made else without_caches_of_keys(model):
        run_on_fakes(model, args, kwargs, found)
    return found.counts


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        self.counts[str(func), str(shapes)] += 1
        return func(*args, **(kwargs or {}))


def _returns_others(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the outputs are others without a cache; False where that cannot be known."""
    found = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    tensors = (*model.parameters(), *model.buffers(), *found)
    if any(isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" for tensor in tensors):
        logger.info("it is not known whether the model is the same without its cache of keys and values")
        return False
    try:
        made, without = (_outputs(model, args, kwargs, made=made) for made in (True, False))
    except Exception as error:  # whatever the model raises
        logger.info("it is not known whether the model is the same without its cache of keys and values: %s", error)
        return False
    return len(made) != len(without) or any(_is_off(*pair) for pair in zip(made, without, strict=True))


def _outputs(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, made: bool) -> list[Any]:
    """The tensors that a forward pass returns, but for the cache. The model is as before it."""
    caches = nullcontext() if made else without_caches_of_keys(model)
    with caches, same_buffers(model), put_back(model, []), torch.random.fork_rng(devices=[]), torch.no_grad():
        returned = model(*args, **kwargs)
    return [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]


def _is_off(made: torch.Tensor, without: torch.Tensor) -> bool:
    """By more than kernels of another path are: half of the digits of the larger tensor's numbers."""
    if (made.shape, made.dtype) != (without.shape, without.dtype):
        return True
    if not made.dtype.is_floating_point or not made.numel():
        return not torch.equal(made, without)
    largest = float(made.abs().nan_to_num(0.0, 0.0, 0.0).max())
    most = torch.finfo(made.dtype).eps ** 0.5 * largest
    return not torch.allclose(made, without, rtol=0.0, atol=most, equal_nan=True)
