"""Which aten operators do work that grows faster than their results: what selective checkpointing keeps.

By target, so that a kernel that has no record of its own (attention on a GPU) has its kind, too.
"""

from __future__ import annotations

from typing import Any

import torch

from monet.base.graph import Operator

aten = torch.ops.aten

MATMUL = "matmul"
ATTENTION = "attention"
CONVOLUTION = "convolution"

_PACKETS = {
    MATMUL: (
        aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot, aten.vdot,
        aten._scaled_mm, aten._grouped_mm, aten._scaled_grouped_mm,
    ),
    ATTENTION: (
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_cudnn_attention,
        aten._scaled_dot_product_fused_attention_overrideable,
        aten._flash_attention_forward,
        aten._efficient_attention_forward,
        aten._cudnn_attention_forward,
    ),
    CONVOLUTION: (aten.convolution,),
}  # fmt: skip
_KINDS: dict[Any, str] = {packet: kind for kind, packets in _PACKETS.items() for packet in packets}


def kind(op: Operator) -> str:
    """``matmul``, ``attention`` (fused) or ``convolution``, in all their overloads; "" for any other operator."""
    return _KINDS.get(getattr(op.target, "overloadpacket", None), "")
