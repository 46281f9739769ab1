"""The floating-point formats that kernels read and write; the mirror of ``formats.h``."""

from __future__ import annotations

import torch

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
