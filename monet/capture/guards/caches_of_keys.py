"""Caches of keys and values of transformers, which are for generating."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def without_cache_of_keys(model: torch.nn.Module) -> AbstractContextManager[Any]:
    """A context in which models of transformers make no cache of keys and values, an object that no plan can hold and
    that training does not need."""
    configs = {id(config): config for module in model.modules() if _has_cache(config := _config(module))}
    return _Without(list(configs.values())) if configs else nullcontext()


def _config(module: torch.nn.Module) -> Any:
    return module.__dict__.get("config")


def _has_cache(config: Any) -> bool:
    return getattr(config, "use_cache", False) is True


class _Without:
    def __init__(self, configs: list[Any]) -> None:
        self._configs = configs

    def __enter__(self) -> None:
        for config in self._configs:
            config.use_cache = False

    def __exit__(self, *_: object) -> None:
        for config in self._configs:
            config.use_cache = True
