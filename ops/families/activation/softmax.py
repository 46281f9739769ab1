"""Softmax and log-softmax: aten's gradient reads the output already."""

from __future__ import annotations

import torch

from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample

aten = torch.ops.aten

RECORDS = (
    Record(
        name="softmax",
        family="activations",
        forward_targets=(aten._softmax.default,),
        backward_targets=(aten._softmax_backward_data.default,),
        equations="aten's own, from the output: y (g - sum(g y)); in place, as a row is summed before it is written",
        samples=(
            Sample("softmax", lambda x: x.softmax(-1), ((5, 67),)),
            Sample("softmax_of_middle", lambda x: x.softmax(1), ((3, 19, 7),)),
        ),
    ),
    Record(
        name="log_softmax",
        family="activations",
        forward_targets=(aten._log_softmax.default,),
        backward_targets=(aten._log_softmax_backward_data.default,),
        equations="aten's own, from the output: g - exp(y) sum(g); in place, as a row is summed before it is written",
        samples=(
            Sample("log_softmax", lambda x: x.log_softmax(-1), ((5, 67),)),
            Sample("log_softmax_of_middle", lambda x: x.log_softmax(1), ((3, 19, 7),)),
        ),
    ),
)
