"""One small member of every module of timm: the one of the fewest parameters, at the smallest image that it takes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from monet.models.torchvision_schemas import with_torchvision_schemas

SIDES = (64, 128, 224, 256, 384)
TRIED = 5
"""Members of a module whose parameters are counted: those of the shortest names, and all that timm made for tests."""


def timm() -> Any:
    return with_torchvision_schemas(lambda: importlib.import_module("timm"))


def members() -> Iterator[str]:
    for module in timm().list_modules():
        names = [name for name in timm().list_models(module=module) if _counts(name)]
        tests = [name for name in names if name.startswith("test_")]
        tried = tests or sorted(names, key=lambda name: (len(name), name))[:TRIED]
        sizes = {name: size for name in tried if (size := _parameters(name)) is not None}
        if sizes:
            yield min(sizes, key=lambda name: (sizes[name], name))


def build(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A model, and images that it may take, the smallest first."""
    model = timm().create_model(name, num_classes=10)
    channels, *_ = model.pretrained_cfg.get("input_size", (3, 224, 224))
    inputs = [{"x": torch.rand(2, channels, side, side)} for side in SIDES]
    return model, inputs


def _counts(name: str) -> bool:
    return not name.endswith(("_tf", "in21k", "in22k"))


def _parameters(name: str) -> int | None:
    try:
        with torch.device("meta"):
            model = timm().create_model(name)
    except Exception:  # a member that cannot be made without its weights, say
        return None
    return sum(parameter.numel() for parameter in model.parameters())
