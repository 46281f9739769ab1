"""Poolings and the calls to try them with. Of the input, the gradients of most read the shape alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monet.ops.families.pooling import offers
from monet.ops.offers import shape_only
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample, between

aten = torch.ops.aten
functional = torch.nn.functional

# What aten has no bfloat16 kernel for on the CPU.
_FLOAT = (torch.float32,)


def _channels_last(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return lambda x: function(x.contiguous(memory_format=formats[x.dim()]))


def _max_pool(rank: int, target: Callable[..., Any], back: Callable[..., Any], samples: tuple[Sample, ...]) -> Record:
    return Record(
        name=f"max_pool{rank}d",
        family="pooling",
        forward_targets=(target,),
        backward_targets=(back,),
        equations="Gist, section 4: the cell in the window instead of the index in the plane; of the input, the shape",
        samples=samples,
        intermediates=offers.intermediates,
        backward=offers.backward,
    )


def _adaptive_max_pool(
    rank: int, target: Callable[..., Any], back: Callable[..., Any], samples: tuple[Sample, ...]
) -> Record:
    return Record(
        name=f"adaptive_max_pool{rank}d",
        family="pooling",
        forward_targets=(target,),
        backward_targets=(back,),
        equations="Gist, section 4, with windows from floor(o * size / count) on; of the input, the shape",
        samples=samples,
        intermediates=offers.intermediates,
        backward=offers.backward,
    )


def _from_shape(name: str, target: Callable[..., Any], back: Callable[..., Any], samples: tuple[Sample, ...]) -> Record:
    return Record(
        name=name,
        family="pooling",
        forward_targets=(target,),
        backward_targets=(back,),
        equations="a mean's gradient is the same wherever it is taken: of the input, the shape"
        if "avg" in name
        else "windows are drawn anew each step, so a cell in the window says nothing; of the input, the shape",
        samples=samples,
        backward=shape_only.backward,
    )


RECORDS = (
    _max_pool(
        2,
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        (
            Sample("max_pool2d", lambda x: functional.max_pool2d(x, 3, 2, 1), ((2, 3, 11, 13),)),
            Sample("max_pool2d-dilated", lambda x: functional.max_pool2d(x, (2, 3), 1, 1, (2, 3)), ((2, 3, 11, 13),)),
            Sample("max_pool2d-ceil", lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), ((2, 3, 10, 12),)),
            Sample("max_pool2d-unbatched", lambda x: functional.max_pool2d(x, 3, 2), ((3, 11, 13),)),
            Sample("max_pool2d-large", lambda x: functional.max_pool2d(x, 17), ((2, 3, 34, 34),)),
            Sample(
                "max_pool2d-channels-last",
                _channels_last(lambda x: functional.max_pool2d(x, 3, 2, 1)),
                ((2, 70, 11, 13),),
            ),
            Sample("max_pool2d-transposed", lambda x: functional.max_pool2d(x.mT, 3, 2, 1), ((2, 3, 11, 13),)),
            Sample("max_pool1d", lambda x: functional.max_pool1d(x, 3, 2, 1), ((2, 3, 17),)),
        ),
    ),
    _max_pool(
        3,
        aten.max_pool3d_with_indices.default,
        aten.max_pool3d_with_indices_backward.default,
        (
            Sample("max_pool3d", lambda x: functional.max_pool3d(x, 3, 2, 1), ((2, 3, 7, 8, 9),)),
            Sample(
                "max_pool3d-dilated",
                lambda x: functional.max_pool3d(x, (2, 1, 3), 1, (1, 0, 1), (2, 3, 2)),
                ((2, 3, 7, 8, 9),),
            ),
            Sample(
                "max_pool3d-ceil",
                lambda x: functional.max_pool3d(x, 2, 2, 0, 1, True),
                ((2, 3, 7, 8, 9),),
            ),
            Sample(
                "max_pool3d-channels-last",
                _channels_last(lambda x: functional.max_pool3d(x, 3, 2, 1)),
                ((2, 5, 7, 8, 9),),
            ),
            Sample("max_pool3d-large", lambda x: functional.max_pool3d(x, 7), ((2, 3, 7, 14, 7),)),
        ),
    ),
    _adaptive_max_pool(
        2,
        aten.adaptive_max_pool2d.default,
        aten.adaptive_max_pool2d_backward.default,
        (
            Sample("adaptive_max_pool2d", lambda x: functional.adaptive_max_pool2d(x, (3, 5)), ((2, 3, 11, 13),)),
            Sample("adaptive_max_pool1d", lambda x: functional.adaptive_max_pool1d(x, 5), ((2, 3, 17),)),
            Sample("adaptive_max_pool2d-overlap", lambda x: functional.adaptive_max_pool2d(x, 7), ((2, 3, 11, 5),)),
            Sample(
                "adaptive_max_pool2d-channels-last",
                _channels_last(lambda x: functional.adaptive_max_pool2d(x, (3, 5))),
                ((2, 6, 11, 13),),
            ),
        ),
    ),
    _adaptive_max_pool(
        3,
        aten.adaptive_max_pool3d.default,
        aten.adaptive_max_pool3d_backward.default,
        (Sample("adaptive_max_pool3d", lambda x: functional.adaptive_max_pool3d(x, (2, 3, 5)), ((2, 3, 7, 8, 9),)),),
    ),
    _from_shape(
        "fractional_max_pool2d",
        aten.fractional_max_pool2d.default,
        aten.fractional_max_pool2d_backward.default,
        (
            Sample(
                "fractional_max_pool2d",
                lambda x: functional.fractional_max_pool2d(x, 2, output_size=5),
                ((2, 3, 11, 13),),
                dtypes=_FLOAT,
            ),
        ),
    ),
    _from_shape(
        "fractional_max_pool3d",
        aten.fractional_max_pool3d.default,
        aten.fractional_max_pool3d_backward.default,
        (
            Sample(
                "fractional_max_pool3d",
                lambda x: functional.fractional_max_pool3d(x, 2, output_size=3),
                ((2, 3, 7, 8, 9),),
                dtypes=_FLOAT,
            ),
        ),
    ),
    _from_shape(
        "avg_pool2d",
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
        (
            Sample("avg_pool2d", lambda x: functional.avg_pool2d(x, 3, 2, 1), ((2, 3, 11, 13),)),
            Sample(
                "avg_pool2d-ceil",
                lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
                ((2, 3, 10, 12),),
            ),
            Sample(
                "avg_pool2d-channels-last",
                _channels_last(lambda x: functional.avg_pool2d(x, 3, 2, 1)),
                ((2, 6, 11, 13),),
            ),
            Sample("avg_pool1d", lambda x: functional.avg_pool1d(x, 3, 2, 1), ((2, 3, 17),)),
            Sample(
                "lp_pool2d",
                lambda x: functional.lp_pool2d(x, 3.0, 3, 2),
                (between(0.5, 1.0, (2, 3, 11, 13)),),
                dtypes=_FLOAT,
            ),
        ),
    ),
    _from_shape(
        "avg_pool3d",
        aten.avg_pool3d.default,
        aten.avg_pool3d_backward.default,
        (
            Sample("avg_pool3d", lambda x: functional.avg_pool3d(x, 3, 2, 1), ((2, 3, 7, 8, 9),), dtypes=_FLOAT),
            Sample(
                "avg_pool3d-channels-last",
                _channels_last(lambda x: functional.avg_pool3d(x, 3, 2, 1)),
                ((2, 6, 7, 8, 9),),
                dtypes=_FLOAT,
            ),
        ),
    ),
    _from_shape(
        "adaptive_avg_pool2d",
        aten._adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool2d_backward.default,
        (
            Sample("adaptive_avg_pool2d", lambda x: functional.adaptive_avg_pool2d(x, (3, 5)), ((2, 3, 11, 13),)),
            Sample(
                "adaptive_avg_pool2d-channels-last",
                _channels_last(lambda x: functional.adaptive_avg_pool2d(x, (3, 5))),
                ((2, 6, 11, 13),),
            ),
            Sample("adaptive_avg_pool1d", lambda x: functional.adaptive_avg_pool1d(x, 5), ((2, 3, 17),)),
        ),
    ),
    _from_shape(
        "adaptive_avg_pool3d",
        aten._adaptive_avg_pool3d.default,
        aten._adaptive_avg_pool3d_backward.default,
        (Sample("adaptive_avg_pool3d", lambda x: functional.adaptive_avg_pool3d(x, (2, 3, 5)), ((2, 3, 7, 8, 9),)),),
    ),
)
