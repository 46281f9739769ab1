"""Small models whose operators stand for those of most networks, at several sizes: how fast is each kind of kernel?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Probe = tuple[nn.Module, tuple[Tensor, ...]]
"""A model and its inputs."""


class _Images(nn.Module):
    """Convolutions of every form beside norms and activations, for images of ``channels``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.windows = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, wide, 1, bias=False)
        self.depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm_of_wide = nn.BatchNorm2d(wide)
        self.back = nn.Conv2d(wide, channels, 1)
        self.halving = nn.Conv2d(channels, wide, 3, stride=2, padding=1)
        self.halving_pointwise = nn.Conv2d(channels, wide, 1, stride=2)
        self.doubling = nn.ConvTranspose2d(wide, channels, 2, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.windows(images)))
        wide = functional.hardtanh(self.norm_of_wide(self.depthwise(self.pointwise(features))), 0.0, 6.0)
        features = torch.relu(features + self.back(functional.silu(wide)))
        half = functional.hardswish(self.halving(features) + self.halving_pointwise(features))
        scale = torch.sigmoid(half.mean((2, 3), keepdim=True))
        doubled = functional.leaky_relu(self.doubling(half * scale), 0.1)
        return functional.avg_pool2d(torch.cat([doubled, features], 1), 2)


class _Head(nn.Module):
    """What only the first and the last layers of such a network have."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(0.5)
        self.classes = nn.Linear(channels, 100)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.norm(self.stem(images)))
        features = functional.max_pool2d(features, 3, 2, 1)
        pooled = functional.adaptive_avg_pool2d(features, 1).flatten(1)
        classes: Tensor = self.classes(self.drop(pooled))
        return classes


class _Elementwise(nn.Module):
    """Operators that take as long as their bytes take to move, on tensors that fit into no cache."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.layer_norm = nn.LayerNorm(56)
        self.drop = nn.Dropout(0.1)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.relu(self.norm(images.mul(1.5)))
        features = features + functional.silu(images)
        features = functional.gelu(self.layer_norm(features))
        output: Tensor = self.drop(features) * torch.sigmoid(images)
        return output


class _Block(nn.Module):
    """A transformer's block: attention by the fused kernel and by its products, with two kinds of norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.split = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self._parts(self.split(self.norm(tokens)))
        fused = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        weights = functional.softmax(query @ key.transpose(-2, -1), -1)
        mixed = fused + self.drop(weights) @ value
        tokens = tokens + self.join(mixed.transpose(1, 2).reshape(tokens.shape))
        scaled = tokens * torch.rsqrt(tokens.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        hidden = functional.gelu(self.up(scaled))
        output: Tensor = tokens + self.drop(self.down(hidden))
        return output

    def _parts(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = joined.shape
        parts = joined.view(batch, length, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        return parts[0], parts[1], parts[2]


class _Language(nn.Module):
    """Tokens to the loss of the next ones."""

    def __init__(self, vocabulary: int, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.block = _Block(width, heads)
        self.words = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.words(torch.tanh(self.block(self.embed(tokens))))
        return functional.cross_entropy(words.flatten(0, 1), tokens.flatten())


def probes() -> tuple[Probe, ...]:
    """What is measured, in all some hundred kernels; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        return (
            *((_Images(c), (torch.empty(8, c, size, size),)) for c, size in ((16, 112), (64, 56), (256, 14), (512, 8))),
            (_Head(64), (torch.empty(8, 3, 224, 224),)),
            (_Elementwise(64), (torch.empty(64, 64, 56, 56),)),
            (_Elementwise(64), (torch.empty(4, 64, 56, 56),)),
            (_Language(1000, 64, 4), (torch.zeros(2, 64, dtype=torch.int64),)),
            (_Language(8000, 512, 8), (torch.zeros(4, 256, dtype=torch.int64),)),
        )
