"""Generated data that the models of ``monet.models.examples`` can learn from."""

from __future__ import annotations

import torch
from torch import Tensor


def pictures(seed: int, batch: int, *, classes: int = 10, size: int = 32, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    """Images (batch, 3, size, size), each the pattern of its class under noise, and their classes (batch,).

    The patterns are always the same: fixed random 4x4 maps, enlarged.
    """
    patterns = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    patterns = torch.nn.functional.interpolate(patterns, size=(size, size), mode="bilinear")
    generator = torch.Generator().manual_seed(1 + seed)
    labels = torch.randint(0, classes, (batch,), generator=generator)
    return patterns[labels] + noise * torch.randn(batch, 3, size, size, generator=generator), labels


def texts(seed: int, batch: int, *, words: int = 64, length: int = 32) -> tuple[Tensor, Tensor]:
    """Texts (batch, length) and, at each place, the word that comes next.

    After each word comes, with probability 0.8, one that is fixed for this word, and else any word.
    """
    follower = torch.randperm(words, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + seed)
    text = torch.randint(0, words, (batch, length + 1), generator=generator)
    usual = torch.rand(batch, length + 1, generator=generator) < 0.8
    for place in range(length):
        text[:, place + 1] = torch.where(usual[:, place], follower[text[:, place]], text[:, place + 1])
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
