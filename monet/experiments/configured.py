"""From a configuration to its prepared step."""

from __future__ import annotations

from dataclasses import replace

from monet.configuration.config import Config
from monet.configuration.model_loading import build_model, precision
from monet.configuration.sample_inputs import empty_inputs
from monet.ops.offers.offering import Offering
from monet.pipeline.preparation import Prepared, Preparing, prepare


def prepare_config(
    config: Config,
    preparing: Preparing | None = None,
    offering: Offering | None = None,
    *,
    progress: bool = False,
) -> Prepared:
    """The configuration's model on inputs of its shapes, captured and measured in its precision.

    Arguments as for ``prepare``; whether gradients accumulate, and the seed, are the configuration's. Raises what
    ``build_model`` and ``prepare`` raise.
    """
    model = build_model(config)
    args, kwargs = empty_inputs(config, model)
    preparing = replace(
        preparing or Preparing(), accumulate=config.accumulate, seed=config.seed, gradients=config.gradients
    )
    with precision(config):
        return prepare(model, args, kwargs, preparing, offering, progress=progress)
