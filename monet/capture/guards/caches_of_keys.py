"""Caches of keys and values of transformers, which are for generating."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from monet.base.graph import PARAMETER, Graph, operator_inputs
from monet.capture.export_errors import run_on_fakes
from monet.errors import CaptureError


@contextmanager
def caches_of_keys(model: torch.nn.Module, *, made: bool) -> Iterator[bool]:
    """A context in which models of transformers make, or do not make, the cache of keys and values that they are
    configured to make: an object that no plan can hold and that training does not need. Whether they are."""
    configs: list[Any] = [module.__dict__.get("config") for module in model.modules()]
    changed = {id(config): config for config in configs if getattr(config, "use_cache", None) is (not made)}
    for config in changed.values():
        config.use_cache = made
    try:
        yield bool(changed)
    finally:
        for config in changed.values():
            config.use_cache = not made


def require_unread_caches(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph) -> None:
    """Raises ``CaptureError`` where the model, whose step without a cache is ``graph``, reads keys in a forward pass
    that it has put into its cache in the same one: a layer that runs twice and has one place there. Without a cache it
    is another function then. The model is run again, without memory, only where some layer runs twice."""
    if "transformers.cache_utils" not in sys.modules or not _runs_a_layer_twice(model, graph):
        return
    cache = sys.modules["transformers.cache_utils"].Cache
    update, read = cache.update, set[int]()

    def noting(self: Any, keys: Any, values: Any, layer_idx: int, *more: Any, **named: Any) -> Any:
        returned = update(self, keys, values, layer_idx, *more, **named)
        if returned[0].shape != keys.shape:
            read.add(layer_idx)
        return returned

    cache.update = noting
    try:
        with caches_of_keys(model, made=True):
            run_on_fakes(model, args, kwargs)
    finally:
        cache.update = update
    if read:
        raise CaptureError(
            f"layer {min(read)} runs more than once in a forward pass and reads the keys that it has cached in it, so "
            "that the model is another one without its cache, which no plan can hold: check the numbers of layers in "
            "its configuration, or set model.config.use_cache = False, which eager PyTorch then heeds, too"
        )


def _runs_a_layer_twice(model: torch.nn.Module, graph: Graph) -> bool:
    """Whether some weight of a module with a place in the cache is read by two operators of the forward pass."""
    layers = tuple(f"{name}." for name, module in model.named_modules() if hasattr(module, "layer_idx"))
    weights = {
        graph.storage(source.value)
        for source in graph.sources
        if source.kind == PARAMETER and f"{source.target}.".startswith(layers)
    }
    readers = Counter(
        storage
        for operator in graph.forward
        if not operator.view
        for storage in {graph.storage(name) for name in operator_inputs(operator)} & weights
    )
    return any(number > 1 for number in readers.values())
