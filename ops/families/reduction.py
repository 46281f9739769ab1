"""Sums, means, variances and running sums: aten's kernels, which ask for nothing beside their results.

The gradient of a sum or a mean is the incoming one, expanded: a view. That of a variance reads the input."""

from __future__ import annotations

import torch

from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample

aten = torch.ops.aten

RECORDS = (
    Record(
        name="sum, mean, cumsum",
        family="reductions",
        forward_targets=(aten.sum.default, aten.sum.dim_IntList, aten.mean.dim, aten.cumsum.default),
        backward_targets=(aten.cumsum.default,),
        equations="linear in the input: the gradient reads nothing of it",
        samples=(
            Sample("sum", lambda x: x.sum((0, 2), keepdim=True), ((6, 7, 3),)),
            Sample("sum-all", lambda x: (x.sum() * 2).exp().log(), ((6, 7),)),
            Sample("mean", lambda x: x.mean(1), ((6, 7),)),
            Sample("cumsum", lambda x: x.cumsum(1), ((6, 7),)),
        ),
    ),
    Record(
        name="var, norm, max",
        family="reductions",
        forward_targets=(aten.var.correction, aten.linalg_vector_norm.default, aten.max.dim),
        backward_targets=(),
        equations="a variance's gradient reads the input, a norm's the output too, a maximum's the indices",
        samples=(
            Sample("var", lambda x: x.var(1), ((6, 7),)),
            Sample("norm", lambda x: x.norm(dim=1), ((6, 7),)),
            Sample("max", lambda x: x.max(1), ((6, 7),)),
        ),
    ),
)
