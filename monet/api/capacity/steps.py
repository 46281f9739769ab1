"""The step that is asked about, at the batch that is given and at others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from monet.errors import ConfigError
from monet.lab.experiments.configured import prepare_config
from monet.models.config import Config
from monet.models.converted_tensors import convert_tensors
from monet.ops.estimating.rates import Rates
from monet.ops.offers.offering import Offering
from monet.pipeline.preparation import Prepared, Preparing, prepare


@dataclass(frozen=True, slots=True)
class Steps:
    """``at``: the prepared step at a batch, None being the given one; ``batch``: that one, None where the inputs have
    no first dimension in common."""

    at: Callable[[int | None], Prepared]
    batch: int | None


def config_steps(config: Config, preparing: Preparing, offering: Offering, *, progress: bool) -> Steps:
    """Of a configuration; errors are those of ``prepare_config``."""
    try:
        batch = config.batch()
    except ConfigError:
        batch = None

    def at(other: int | None) -> Prepared:
        sized = config if other is None else config.with_batch(other)
        return prepare_config(sized, preparing, offering, progress=progress)

    return Steps(at, batch)


def model_steps(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    preparing: Preparing,
    offering: Offering,
    *,
    progress: bool,
) -> Steps:
    """Of a model, which may be fake, or on the meta device where costs are estimated; errors are ``prepare``'s."""
    given = (tuple(args), dict(kwargs))
    if isinstance(preparing.costs, Rates):
        model, given = _without_meta(model, given)
    tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    sizes = {tensor.shape[0] for tensor in tensors}

    def at(other: int | None) -> Prepared:
        sized = given if other is None else pytree.tree_map(partial(_sized, batch=other), given)
        return prepare(model, sized[0], sized[1], preparing, offering, progress=progress)

    return Steps(at, sizes.pop() if len(sizes) == 1 else None)


def _sized(leaf: Any, batch: int) -> Any:
    """An empty tensor with another first dimension, in the memory format of the given one."""
    if not isinstance(leaf, torch.Tensor) or not leaf.dim():
        return leaf
    steps, sizes = leaf.stride(), (batch, *leaf.shape[1:])
    order = sorted(range(leaf.dim()), key=lambda d: (-steps[d], d))
    mode: AbstractContextManager[Any] = leaf.fake_mode if isinstance(leaf, FakeTensor) else nullcontext()
    with mode:
        made = torch.empty([sizes[d] for d in order], dtype=leaf.dtype, device=leaf.device)
        if not leaf.dtype.is_floating_point:
            made.zero_()
    back = sorted(range(leaf.dim()), key=lambda d: order[d])
    return made.permute(back).detach().requires_grad_(leaf.requires_grad)


def _without_meta(model: torch.nn.Module, given: Any) -> tuple[torch.nn.Module, Any]:
    """Model and inputs as fake tensors of the CPU, where a parameter or buffer is on the meta device. The caller's
    model stays as it is."""
    if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        return model, given
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = copy.deepcopy(model)

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        with mode:
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu")
        return made.requires_grad_(leaf.requires_grad)

    convert_tensors(model, fake)
    return model, pytree.tree_map(fake, given)
