"""Convolutions to try: of each number of dimensions, large enough for every implementation, and of each odd form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monet.ops.offers.sample import Sample, between

functional = torch.nn.functional
_FLOAT = (torch.float32,)


def _channels_last(convolution: Callable[..., torch.Tensor], **kwargs: Any) -> Callable[..., Any]:
    """With the input and the weight in that format."""

    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        form = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        return convolution(x.contiguous(memory_format=form), weight.contiguous(memory_format=form), bias, **kwargs)

    return call


def _frozen(rank: int) -> Callable[..., Any]:
    """No gradient of the weight: the bias's and the input's alone."""
    call = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    return lambda x, weight, bias: call(x, weight.detach(), bias, stride=2)


SAMPLES = (
    Sample("conv1d", lambda x, w, b: functional.conv1d(x, w, b, 2, 1), ((4, 8, 17000),), ((16, 8, 3), (16,))),
    Sample("conv2d", lambda x, w, b: functional.conv2d(x, w, b, 1, 1), ((8, 8, 96, 96),), ((8, 8, 3, 3), (8,))),
    Sample(
        "conv2d-strided", lambda x, w: functional.conv2d(x, w, None, 2, (1, 0)), ((8, 8, 96, 96),), ((16, 8, 3, 2),)
    ),
    Sample(
        "conv2d-dilated", lambda x, w: functional.conv2d(x, w, None, 1, "same", 2), ((8, 8, 96, 96),), ((8, 8, 3, 3),)
    ),
    Sample("conv2d-1x1", lambda x, w, b: functional.conv2d(x, w, b), ((8, 8, 96, 96),), ((16, 8, 1, 1), (16,))),
    Sample("conv2d-1x1-strided", lambda x, w: functional.conv2d(x, w, None, 2), ((8, 8, 96, 96),), ((8, 8, 1, 1),)),
    Sample(
        "conv2d-1x1-grouped",
        lambda x, w, b: functional.conv2d(x, w, b, groups=2),
        ((8, 8, 96, 96),),
        ((16, 4, 1, 1), (16,)),
    ),
    Sample(
        "conv2d-heavy", lambda x, w, b: functional.conv2d(x, w, b, 1, 1), ((4, 256, 6, 6),), ((256, 256, 3, 3), (256,))
    ),
    Sample(
        "conv2d-heavy-strided",
        lambda x, w: functional.conv2d(x, w, None, (2, 1), 2, 2, 2),
        ((4, 256, 6, 6),),
        ((512, 128, 3, 3),),
    ),
    Sample(
        "conv2d-heavy-positive",  # no terms cancel, in the gradients either: roundings add up
        lambda x, w, b, scale: (functional.conv2d(x, w, b, 1, 2) * scale).sum(),
        (between(0.5, 1.5, (8, 8, 14, 14)),),
        (
            between(0.5, 1.5, (512, 8, 5, 5)),
            between(0.5, 1.5, (512,)),
            between(0.5, 1.5, (8, 512, 14, 14), requires_grad=False),
        ),
    ),
    Sample(
        "conv2d-grouped",
        lambda x, w, b: functional.conv2d(x, w, b, 1, 1, groups=2),
        ((8, 8, 96, 96),),
        ((8, 4, 3, 3), (8,)),
    ),
    Sample(
        "conv2d-depthwise",
        lambda x, w: functional.conv2d(x, w, None, 2, 1, groups=8),
        ((8, 8, 96, 96),),
        ((8, 1, 3, 3),),
    ),
    Sample(
        "conv2d-channels-last",
        _channels_last(functional.conv2d, padding=1, stride=2),
        ((8, 8, 96, 96),),
        ((8, 8, 3, 3), (8,)),
    ),
    Sample("conv2d-1x1-channels-last", _channels_last(functional.conv2d), ((8, 8, 96, 96),), ((16, 8, 1, 1), (16,))),
    Sample("conv2d-frozen", _frozen(2), ((8, 8, 96, 96),), ((8, 8, 3, 3), (8,))),
    Sample(
        "conv2d-first",  # the image takes no gradient
        lambda x, w, b: functional.conv2d(x.detach(), w, b, 2) + x.mean(),
        ((8, 8, 96, 96),),
        ((8, 8, 3, 3), (8,)),
    ),
    Sample("conv2d-unbatched", lambda x, w, b: functional.conv2d(x, w, b), ((8, 200, 200),), ((8, 8, 3, 3), (8,))),
    Sample(
        "conv3d",
        lambda x, w, b: functional.conv3d(x, w, b, 2, 1),
        ((4, 8, 28, 28, 28),),
        ((8, 8, 3, 3, 3), (8,)),
    ),
    Sample(
        "conv3d-channels-last",
        _channels_last(functional.conv3d, padding=1),
        ((4, 8, 28, 28, 28),),
        ((8, 8, 3, 3, 3), (8,)),
    ),
)

TRANSPOSED = (
    Sample(
        "conv_transpose1d",
        lambda x, w, b: functional.conv_transpose1d(x, w, b, 2, 1, 1),
        ((4, 8, 17000),),
        ((8, 16, 3), (16,)),
    ),
    Sample(
        "conv_transpose2d",
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 1, 1, 2),
        ((8, 8, 48, 48),),
        ((8, 4, 3, 3), (4,)),
    ),
    Sample(
        "conv_transpose2d-heavy",
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 1, 2, 2),
        ((4, 256, 6, 6),),
        ((256, 256, 3, 3), (512,)),
    ),
    Sample(
        "conv_transpose2d-heavy-positive",
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 1, 2),
        (between(0.5, 1.5, (8, 512, 14, 14)),),
        (between(0.5, 1.5, (512, 8, 5, 5)), between(0.5, 1.5, (8,))),
    ),
    Sample(
        "conv_transpose3d",
        lambda x, w, b: functional.conv_transpose3d(x, w, b, 2),
        ((4, 8, 14, 14, 14),),
        ((8, 8, 2, 2, 2), (8,)),
    ),
)
