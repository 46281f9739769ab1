"""Which convolutions torch gives to oneDNN on this machine."""

from __future__ import annotations

from functools import cache

import torch


@cache
def onednn_takes(dtype: torch.dtype) -> bool:
    """Whether convolutions of this dtype can be oneDNN's here.

    bfloat16 and float16 need instructions that not every processor has (AVX-512 for bfloat16, as torch decides).
    Without them torch multiplies the windows of the whole batch as columns, and adds windows and images up in that
    dtype: over 512 images, 8 bits lose half of a weight's gradient.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    mkldnn = torch.ops.mkldnn
    supported = mkldnn._is_mkldnn_bf16_supported if dtype is torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported
    return bool(supported())
