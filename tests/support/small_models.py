"""Small modules that between them use every operator with a record of its own, and awkward structure."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """Convolutions, batch norm, in-place and plain ReLU, a shared input, max pooling, a residual sum."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, groups=2),
            nn.BatchNorm2d(width),
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.body(x))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Inverted(nn.Module):
    """Depthwise convolution, ReLU6, average pooling, dropout, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 12, 1), nn.BatchNorm2d(12), nn.ReLU6(inplace=True))
        self.depth = nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12), nn.ReLU6())
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(24 * 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.expand(x)
        x = torch.cat([x, self.depth(x)], 1)
        out: torch.Tensor = self.head(self.drop(torch.nn.functional.avg_pool2d(x, 2)).flatten(1))
        return out


class Transformer(nn.Module):
    """Encoder layers with dropout over an embedding."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, activation="gelu")
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


class Awkward(nn.Module):
    """Tied weights, a keyword input, a constant that is no buffer, several outputs of which some are
    views of one another and one is a number, an in-place operator."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        self.drop = nn.Dropout(0.1)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(4, 4).tril())
        self.shift = torch.ones(3)
        self.mask: torch.Tensor

    def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> dict[str, object]:
        x = self.embed(tokens) * scale + self.shift.sum()
        x = self.norm(self.drop(self.mix(x)) * self.mask[0, 0])
        x = x * 2
        x.relu_()
        return {"logits": self.out(x), "flat": x.view(-1), "count": 3, "hidden": x, "tokens": tokens}


class Running(nn.Module):
    """A buffer that the forward pass reads, changes in place, and whose old content the gradient needs;
    several results of one view operator, of which one is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(4, 6)
        self.register_buffer("average", torch.linspace(0.5, 1.5, 12))
        self.average: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.first(x)) * self.average.clone()
        part, _, other = x.chunk(3, dim=1)
        scaled = self.second(part * other) * self.average[:6].clone()
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return torch.sigmoid(scaled), other


class Decoder(nn.Module):
    """A small language model with its loss: positions, a causal mask and one broadcast sum over the batch."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(50, width), nn.Embedding(24, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.embed(tokens) + self.place(torch.arange(length))
        q, k, v = self.qkv(self.norm(x)).reshape(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        x = x + self.feed(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def tokens(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(seed))
