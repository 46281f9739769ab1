"""Plans for several geometries of calls, over one arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monet.api.in_place.call_geometry import InputGeometry, input_geometry
from monet.capture.input_geometry import Call, call_of
from monet.errors import ConfigError


def distinct_calls(samples: Sequence[Any]) -> list[Call]:
    """The calls that ``samples`` are, each geometry once: a tensor, a tuple of arguments or a mapping of keyword
    arguments each. Raises ``ConfigError`` for none, for a tensor or a mapping in the place of several samples, and for
    arguments that no plan can be made for."""
    if isinstance(samples, torch.Tensor | Mapping):
        raise ConfigError(
            f"samples is one {type(samples).__name__}; give a list of samples, one for each geometry: a tensor, a "
            "tuple of arguments or a mapping of keyword arguments each"
        )
    found: dict[InputGeometry, Call] = {}
    for number, sample in enumerate(samples):
        args, kwargs = call_of(sample)
        geometry = input_geometry(args, kwargs)
        if geometry is None:
            raise ConfigError(
                f"sample {number} has an argument that is neither tensor, number nor text, for which no plan can be "
                "made; leave it out where the loop does"
            )
        found.setdefault(geometry, (args, kwargs))
    if not found:
        raise ConfigError("there are no samples to plan for")
    return list(found.values())


def common_options(options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What plans were made with, which must be the same for all. Raises ``ConfigError``."""
    if not options:
        raise ConfigError("there are no plans to apply")
    for other in options[1:]:
        if other != options[0]:
            raise ConfigError(f"plans of one model must be made with the same options, not {options[0]} and {other}")
    return options[0]
