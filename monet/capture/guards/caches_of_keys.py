"""Caches of keys and values of transformers, which are for generating."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def without_caches_of_keys(model: torch.nn.Module) -> Iterator[None]:
    """A context in which models of transformers make no cache of keys and values: an object that no plan can hold and
    that training does not need."""
    configs: list[Any] = [module.__dict__.get("config") for module in model.modules()]
    changed = {id(config): config for config in configs if getattr(config, "use_cache", None) is True}
    for config in changed.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed.values():
            config.use_cache = True
