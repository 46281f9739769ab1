"""Matrix products, linear layers and embeddings: aten's kernels, gradients of weight and input apart.

Autograd gives each factor's gradient an operator of its own: the weight's reads the input, the input's only the
weight. So the input dies with the first, and no implementation of ours could keep less. A product asks for nothing
beside its result, so there is nothing to gain by chunks either.
"""

from __future__ import annotations

import torch

from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample, integers

aten = torch.ops.aten
functional = torch.nn.functional

EQUATIONS = "aten's product, which asks for its result alone; each factor's gradient reads the other factor"
RECORDS = (
    Record(
        name="linear, addmm, mm",
        family="products",
        forward_targets=(aten.addmm.default, aten.mm.default),
        backward_targets=(aten.mm.default,),
        equations=EQUATIONS,
        samples=(
            Sample("linear", functional.linear, ((5, 7),), ((3, 7), (3,))),
            Sample("linear-3d", functional.linear, ((2, 5, 7),), ((3, 7), (3,))),
            Sample("linear-unbiased", functional.linear, ((2, 5, 7),), ((3, 7),)),
            Sample("linear-vector", functional.linear, ((7,),), ((3, 7), (3,))),
            Sample("addmm", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), ((5, 3), (5, 7), (7, 3))),
            Sample("linear-empty", lambda x, w: functional.linear(x[:0], w).sum() + x.mean(), ((5, 7),), ((3, 7),)),
        ),
    ),
    Record(
        name="bmm, baddbmm, einsum",
        family="products",
        forward_targets=(aten.bmm.default, aten.baddbmm.default),
        backward_targets=(aten.bmm.default,),
        equations=EQUATIONS,
        samples=(
            Sample("bmm", torch.bmm, ((2, 5, 7), (2, 7, 3))),
            Sample(
                "baddbmm",
                lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2),
                ((2, 5, 3), (2, 5, 7), (2, 7, 3)),
            ),
            Sample("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((2, 5, 7), (2, 3, 7))),
        ),
    ),
    Record(
        name="mv, dot",
        family="products",
        forward_targets=(aten.mv.default, aten.dot.default),
        backward_targets=(aten.mv.default,),
        equations=EQUATIONS,
        samples=(
            Sample("mv", torch.mv, ((5, 7), (7,))),
            Sample("dot", torch.dot, ((7,), (7,))),
        ),
    ),
    Record(
        name="embedding",
        family="products",
        forward_targets=(aten.embedding.default,),
        backward_targets=(aten.embedding_dense_backward.default,),
        equations="the gradient reads the indices alone",
        samples=(
            Sample("embedding", functional.embedding, (integers((2, 3), 11),), ((11, 5),)),
            Sample(
                "embedding-padding",
                lambda i, w: functional.embedding(i, w, padding_idx=1),
                (integers((2, 3), 11),),
                ((11, 5),),
            ),
        ),
    ),
)
