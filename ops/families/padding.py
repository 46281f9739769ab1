"""Padding. The gradients of reflection and replication take the input for its shape alone."""

from __future__ import annotations

import torch

from monet.ops.offers import shape_only
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample

aten = torch.ops.aten
functional = torch.nn.functional

SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 6), 3: (2, 3, 5, 6, 4)}
SIDES = {1: (1, 2), 2: (1, 2, 0, 1), 3: (1, 2, 0, 1, 1, 1)}


def _record(mode: str, kernel: str, rank: int) -> Record:
    def call(x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x, SIDES[rank], mode)

    def last(x: torch.Tensor) -> torch.Tensor:
        return call(x.contiguous(memory_format=torch.channels_last))

    samples = [Sample(f"{kernel}{rank}d", call, (SHAPES[rank],))]
    if rank == 2:
        samples.append(Sample(f"{kernel}{rank}d-channels-last", last, (SHAPES[rank],)))
    return Record(
        name=f"{kernel}{rank}d",
        family="padding",
        forward_targets=(getattr(aten, f"{kernel}{rank}d").default,),
        backward_targets=(getattr(aten, f"{kernel}{rank}d_backward").default,),
        equations="linear in the input: of the input, the gradient reads the shape",
        samples=tuple(samples),
        backward=shape_only.backward,
    )


RECORDS = (
    Record(
        name="constant_pad",
        family="padding",
        forward_targets=(aten.constant_pad_nd.default,),
        backward_targets=(aten.constant_pad_nd.default,),
        equations="linear in the input: the gradient is a padding by the negative",
        samples=(
            Sample("pad", lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5), ((2, 3, 5, 6),)),
            Sample("pad-negative", lambda x: functional.pad(x, (1, -2)), ((2, 3, 5, 6),)),
        ),
    ),
    *(_record("reflect", "reflection_pad", rank) for rank in (1, 2, 3)),
    *(_record("replicate", "replication_pad", rank) for rank in (1, 2, 3)),
)
