"""Scaled dot-product attention: the fused kernel as one operator, and the math path with its intermediates.

The fused kernel (FlashAttention; Dao et al. 2022) never makes the matrix of weights: its backward makes blocks of it
again from query, key, output and the logarithm of each row's sum, so that is all there is to keep, and running
the forward again is the only choice left to a plan. PyTorch takes the math path where there is dropout
or where the mask takes a gradient; its products, softmax and dropout are operators with records of their own.
"""

from __future__ import annotations

import torch

from monet.ops.offers.record import Record
from monet.ops.offers.sample import Input, Maker, Sample

aten = torch.ops.aten
attention = torch.nn.functional.scaled_dot_product_attention

_QKV: tuple[Input, ...] = ((2, 3, 16, 8),) * 3


def _mask(shape: tuple[int, ...]) -> Maker:
    """Four of five may be attended to, the first always."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        mask = torch.rand(shape, generator=generator) < 0.8
        mask[..., 0] = True
        return mask

    return make


RECORDS = (
    Record(
        name="fused attention",
        family="attention",
        forward_targets=(aten._scaled_dot_product_flash_attention_for_cpu.default,),
        backward_targets=(aten._scaled_dot_product_flash_attention_for_cpu_backward.default,),
        equations="FlashAttention, algorithm 4: from query, key, value, output and the rows' log-sum",
        samples=(
            Sample("attention", attention, _QKV),
            Sample("attention-causal", lambda q, k, v: attention(q, k, v, is_causal=True), _QKV),
            Sample("attention-mask", lambda q, k, v, m: attention(q, k, v, m), (*_QKV, _mask((16, 16)))),
            Sample(
                "attention-grouped",
                lambda q, k, v: attention(q, k, v, enable_gqa=True),
                ((2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)),
            ),
            Sample(
                "attention-transposed",
                lambda q, k, v: attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2),
                ((2, 16, 3, 8),) * 3,
            ),
        ),
    ),
    Record(
        name="attention by its products",
        family="attention",
        forward_targets=(aten._safe_softmax.default,),
        backward_targets=(),
        equations="products, softmax and dropout, each with its own gradient",
        samples=(
            Sample("attention-dropout", lambda q, k, v: attention(q, k, v, dropout_p=0.2), _QKV),
            Sample("attention-learnt-mask", lambda q, k, v, m: attention(q, k, v, m), (*_QKV, (16, 16))),
        ),
    ),
)
