"""Copies, selections and tensors of one value: aten's kernels. What is a view moves nothing, and is no run of a plan.

Gradients of all of these are linear in the incoming gradient and read indices or sizes, never the input. Operators
that fill a tensor of another's shape (``zeros_like``) read nothing at all.
"""

from __future__ import annotations

import torch

from monet.ops.offers import shape_only
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Maker, Sample, integers

aten = torch.ops.aten

_FILLED = (
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
)


def _mask(shape: tuple[int, ...]) -> Maker:
    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.rand(shape, generator=generator) < 0.5

    return make


def _views(x: torch.Tensor) -> torch.Tensor:
    return x.view(6, 5).t().unsqueeze(0).squeeze(0).permute(1, 0).reshape(-1)


def _filled(x: torch.Tensor) -> torch.Tensor:
    like = x * torch.full_like(x, 2.0) + torch.ones_like(x) + torch.zeros_like(x)
    return like * x.new_full((7,), 2.0) + x.new_ones(7) + x.new_zeros(7)


RECORDS = (
    Record(
        name="cat, stack, split, chunk",
        family="copies and indexing",
        forward_targets=(aten.cat.default, aten.stack.default),
        backward_targets=(aten.cat.default, aten.stack.default),
        equations="copies; a gradient is a view of the whole's gradient, and of a split's parts a copy",
        samples=(
            Sample("cat", lambda x, y: torch.cat([x, y], 1), ((2, 3, 5), (2, 4, 5))),
            Sample("cat-empty", lambda x: torch.cat([x[:, :0] * 2, x], 1), ((6, 7),)),
            Sample("stack", lambda x, y: torch.stack([x, y], 1), ((2, 3, 5), (2, 3, 5))),
            Sample("split", lambda x: tuple(torch.split(x, [1, 2], 1)), ((2, 3, 5),)),
            Sample("chunk", lambda x: torch.cat([part * 2 for part in x.chunk(3, 1)]), ((2, 3, 5),)),
            Sample("unbind", lambda x: x.unbind(1)[0] * x.unbind(1)[1], ((2, 3, 5),)),
        ),
    ),
    Record(
        name="slice, select, views",
        family="copies and indexing",
        forward_targets=(aten.slice.Tensor, aten.select.int, aten.view.default, aten.permute.default),
        backward_targets=(aten.slice_backward.default, aten.select_backward.default),
        equations="views; a gradient is zero but for the part, and reads sizes",
        samples=(
            Sample("views", _views, ((2, 3, 5),)),
            Sample("slice", lambda x: x[:, ::2, 1:4] * x[:, 1:3, 1:4], ((2, 3, 5),)),
            Sample("select", lambda x: x[:, 1], ((2, 3, 5),)),
        ),
    ),
    Record(
        name="index, gather, index_select, scatter",
        family="copies and indexing",
        forward_targets=(
            aten.index.Tensor,
            aten.gather.default,
            aten.index_select.default,
            aten.scatter.src,
            aten.scatter_add.default,
            aten.index_put.default,
        ),
        backward_targets=(aten.index_put.default, aten.scatter_add.default, aten.index_add.default),
        equations="a gradient is scattered to where its elements came from: indices alone",
        samples=(
            Sample("index", lambda x, i: x[:, i], ((2, 7, 5), integers((4,), 7))),
            Sample("index-pairs", lambda x, i, j: x[i, j], ((6, 7, 5), integers((4,), 6), integers((4,), 7))),
            Sample("gather", lambda x, i: x.gather(1, i), ((6, 7), integers((6, 3), 7))),
            Sample("index_select", lambda x, i: x.index_select(1, i), ((6, 7), integers((4,), 7))),
            Sample("scatter", lambda x, i, v: x.scatter(1, i, v), ((6, 7), integers((6, 1), 7), (6, 1))),
            Sample("scatter_add", lambda x, i, v: x.scatter_add(1, i, v), ((6, 7), integers((6, 3), 7), (6, 3))),
            Sample(
                "index_put",
                lambda x, i, v: x.index_put((i,), v, accumulate=True),
                ((6, 7), integers((4,), 6), (4, 7)),
            ),
        ),
    ),
    Record(
        name="where, masked_fill",
        family="copies and indexing",
        forward_targets=(aten.where.self, aten.masked_fill.Scalar),
        backward_targets=(aten.where.self, aten.masked_fill.Scalar),
        equations="the gradient reads the mask",
        samples=(
            Sample("where", lambda x, y, m: torch.where(m, x, y), ((6, 7), (6, 7), _mask((6, 7)))),
            Sample("masked_fill", lambda x, m: x.masked_fill(m, -1e4).sigmoid(), ((6, 7), _mask((6, 7)))),
        ),
    ),
    Record(
        name="expand, repeat, roll, flip",
        family="copies and indexing",
        forward_targets=(aten.expand.default, aten.repeat.default, aten.roll.default, aten.flip.default),
        backward_targets=(aten.roll.default, aten.flip.default),
        equations="the gradient is a sum over the copies, or the same the other way round",
        samples=(
            Sample("expand", lambda x: x.expand(4, 6, 7) * 2, ((6, 7),)),
            Sample("expand-one", lambda x: x.unsqueeze(0).expand(1, 6, 7) * 2, ((6, 7),)),
            Sample("repeat", lambda x: x.repeat(2, 3), ((6, 7),)),
            Sample("roll", lambda x: x.roll(2, 1), ((6, 7),)),
            Sample("flip", lambda x: x.flip(1), ((6, 7),)),
        ),
    ),
    Record(
        name="zeros_like, new_full, ...",
        family="copies and indexing",
        forward_targets=_FILLED,
        backward_targets=(*_FILLED,),
        equations="a constant: of the argument, the shape",
        samples=(Sample("filled", _filled, ((6, 7),)),),
        forward=shape_only.forward,
        recompute=shape_only.recompute,
        backward=shape_only.backward,
    ),
)
