"""Models to try monet with that need no package beside torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut; the first may halve the image."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm1(self.conv1(images)))
        features = self.norm2(self.conv2(features))
        output: Tensor = self.relu(features + self.shortcut(images))
        return output


def tiny_resnet(classes: int = 10, width: int = 16) -> nn.Module:
    """A residual network of four blocks for 32x32 images: (N, 3, 32, 32) to (N, classes)."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        _Block(width, width, 1),
        _Block(width, 2 * width, 2),
        _Block(2 * width, 2 * width, 1),
        _Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


class LSTMLanguageModel(nn.Module):
    """LSTM cells over tokens, one call a cell and token: (N, T) int64 to (N, T, vocabulary).

    Unrolled, each token's operators are the plan's to keep or to compute again; ``torch.nn.LSTM`` is one operator.
    """

    def __init__(self, vocabulary: int = 10_000, width: int = 650, layers: int = 2, dropout: float = 0.5) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        zero = self.head.weight.new_zeros(tokens.shape[0], self.embed.embedding_dim)
        states = [(zero, zero) for _ in self.cells]
        found = []
        for x in self.drop(self.embed(tokens)).unbind(1):
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = self.drop(states[i][0])
            found.append(x)
        output: Tensor = self.head(torch.stack(found, 1))
        return output


class _Layer(nn.Module):
    """A transformer's layer: causal attention and a two-layer network, each after a layer norm and with dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + nn.functional.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)), self.dropout, self.training)
        output: Tensor = x + self.network(self.norm2(x))
        return output


class _Gpt(nn.Module):
    def __init__(self, words: int, length: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.drop(self.words(text) + self.places.weight[: text.shape[1]])
        for layer in self.layers:
            x = layer(x)
        output: Tensor = self.head(self.norm(x))
        return output


def tiny_gpt(
    words: int = 64, length: int = 32, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.1
) -> nn.Module:
    """A small GPT with dropout: texts (N, length) of whole numbers below ``words`` to (N, length, words)."""
    return _Gpt(words, length, width, layers, heads, dropout)
