"""The tensors that a configuration's model is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from monet.errors import ConfigError
from monet.models.config import INTEGER_DTYPES, Config, InputSpec

Inputs = tuple[tuple[Tensor, ...], dict[str, Tensor]]
"""Positional and keyword arguments of a model."""


def make_inputs(config: Config, seed: int) -> Inputs:
    """Random inputs, the same for the same seed on every device; the global random state is not touched."""
    generator = torch.Generator().manual_seed(seed)

    def made(spec: InputSpec) -> Tensor:
        return _random(spec, _dtype(config, spec), generator).to(config.device).requires_grad_(spec.requires_grad)

    return _map_inputs(config, made)


def empty_inputs(config: Config, model: nn.Module) -> Inputs:
    """Inputs of the right shapes whose memory is never written, so that it is never backed by pages.

    Raises :class:`ConfigError` if ``model`` takes no such arguments.
    """
    args, kwargs = _map_inputs(
        config,
        lambda spec: torch.empty(
            spec.shape, dtype=_dtype(config, spec), device=config.device, requires_grad=spec.requires_grad
        ),
    )
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "no arguments"
        raise ConfigError(f"inputs: {error}; {type(model).__name__}.forward takes {taken}") from error
    return args, kwargs


def _map_inputs(config: Config, make: Callable[[InputSpec], Tensor]) -> Inputs:
    if isinstance(config.inputs, tuple):
        return tuple(make(spec) for spec in config.inputs), {}
    return (), {name: make(spec) for name, spec in config.inputs.items()}


def _random(spec: InputSpec, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if spec.dtype in INTEGER_DTYPES:
        low, high = spec.value_range
        return torch.randint(low, high, spec.shape, dtype=dtype, generator=generator)
    if spec.dtype == "bool":
        return torch.randint(0, 2, spec.shape, generator=generator).bool()
    return torch.randn(spec.shape, dtype=dtype, generator=generator)


def _dtype(config: Config, spec: InputSpec) -> torch.dtype:
    dtype = getattr(torch, config.dtype_of(spec))
    assert isinstance(dtype, torch.dtype)
    return dtype
