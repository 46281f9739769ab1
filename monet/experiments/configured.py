"""From a configuration to its prepared step."""

from __future__ import annotations

from collections.abc import Collection

from monet.configuration.config import Config
from monet.configuration.model_loading import build_model, precision
from monet.configuration.sample_inputs import empty_inputs
from monet.ops.compressed.sparse import DENSITY
from monet.pipeline.preparation import Prepared, prepare


def prepare_config(
    config: Config,
    *,
    reserve_bytes: int = 0,
    exact: bool = False,
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
) -> Prepared:
    """The configuration's model on inputs of its shapes, captured and measured in its precision.

    Options as for ``prepare``; whether gradients accumulate, and the seed, are the configuration's. Raises what
    ``build_model`` and ``prepare`` raise.
    """
    model = build_model(config)
    args, kwargs = empty_inputs(config, model)
    with precision(config):
        return prepare(
            model,
            args,
            kwargs,
            reserve_bytes=reserve_bytes,
            exact=exact,
            accumulate=config.accumulate,
            storage=storage,
            density=density,
            cache=cache,
            progress=progress,
            seed=config.seed,
        )
