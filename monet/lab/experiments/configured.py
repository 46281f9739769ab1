"""From a configuration to its prepared step."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)

from monet.base.sizes import Dimension, Ranges
from monet.errors import ConfigError
from monet.models.config import Config
from monet.models.model_loading import build_model, precision
from monet.models.sample_inputs import empty_inputs
from monet.ops.estimating.rates import Rates
from monet.ops.offers.offering import Offering
from monet.pipeline.preparation import Look, Prepared, Preparing, prepare

_LOOKS_AT_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)

logger = logging.getLogger(__name__)


def prepare_config(
    config: Config,
    preparing: Preparing | None = None,
    offering: Offering | None = None,
    *,
    progress: bool = False,
    look: Look | None = None,
) -> Prepared:
    """The configuration's model on inputs of its shapes, captured and measured in its precision.

    Arguments as for ``prepare``; whether gradients accumulate, and the seed, are the configuration's. With
    rates as its costs the model is made of fake tensors, so it takes no memory; one that looks at the values of its
    tensors when it is made is made of real ones, which is said. Raises what ``build_model`` and ``prepare`` raise.
    """
    model, args, kwargs = _built(config, fake=preparing is not None and isinstance(preparing.costs, Rates))
    preparing = replace(
        preparing or Preparing(), accumulate=config.accumulate, seed=config.seed, gradients=config.gradients
    )
    with precision(config):
        return prepare(model, args, kwargs, preparing, offering, progress=progress, ranges=_ranges(config), look=look)


def _ranges(config: Config) -> Ranges | None:
    """Which sizes vary; inputs by position or by name are in the order of the flattened call."""
    dynamic = config.dynamic
    if not dynamic:
        return None
    specs = config.inputs if isinstance(config.inputs, tuple) else tuple(config.inputs.values())
    dimensions = tuple(Dimension(name, 1, most) for name, (most, _) in dynamic.items())
    return Ranges(dimensions, {position: spec.names for position, spec in enumerate(specs) if any(spec.names)})


def _built(config: Config, *, fake: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    if fake:
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                model = build_model(config)
                return model, *empty_inputs(config, model)
        except ConfigError as error:
            if not isinstance(error.__cause__, _LOOKS_AT_VALUES):
                advice = "it was made of fake tensors, for an estimate; without one it is made of real ones"
                raise ConfigError(f"{error}; {advice}") from error
            logger.warning("%s cannot be made without its weights, so they take memory: %s", config.model, error)
    model = build_model(config)
    return model, *empty_inputs(config, model)
