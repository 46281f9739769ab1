"""Models of the package transformers by name, with random weights, for configurations."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from monet.models.torchvision_schemas import with_torchvision_schemas


def random_weights(architecture: str, **config: Any) -> nn.Module:
    """The class ``architecture`` of transformers with random weights; ``config`` are fields of its configuration, and
    ``attn_implementation``, which chooses the kernels of attention.

    Without a cache of keys and values, which training does not need. Raises ``ValueError`` where there is no such class
    or field; transformers itself takes any field.
    """
    return with_torchvision_schemas(lambda: _random_weights(architecture, config))


def _random_weights(architecture: str, config: dict[str, Any]) -> nn.Module:
    transformers = importlib.import_module("transformers")
    made: Any = getattr(transformers, architecture, None)
    described: Any = getattr(made, "config_class", None)
    if not isinstance(made, type) or described is None:
        raise ValueError(f"transformers has no model class {architecture}{_guess(architecture, dir(transformers))}")
    # Some models read fields that belong to generation, as T5 its first token.
    fields = {**described().to_dict(), **transformers.GenerationConfig().to_dict()}
    unknown = sorted(set(config) - set(fields) - set(described.attribute_map) - {"attn_implementation"})
    if unknown:
        raise ValueError(f"{described.__name__} has no field {unknown[0]}{_guess(unknown[0], fields)}")
    if "use_cache" in fields:
        config = {"use_cache": False, **config}
    model: nn.Module = made(described(**config))
    return model


def _guess(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
