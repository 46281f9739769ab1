"""Twenty-five small networks with batches and losses, for whole steps of some tens of megabytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monet.models import examples
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights

Batch = tuple[Any, Tensor]
Case = tuple[Callable[[], nn.Module], Callable[[int], Batch], Callable[[Any, Tensor], Tensor]]
"""The model, its batch by seed, and its loss."""

WORDS, CLASSES = 512, 10


def _mlp(width: int, depth: int, activation: Callable[[], nn.Module], norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(64, width)]
    for _ in range(depth):
        layers += [activation(), *([nn.LayerNorm(width)] if norm else []), nn.Linear(width, width)]
    return nn.Sequential(*layers, activation(), nn.Linear(width, CLASSES))


def _between(outer: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(outer, inner), nn.GELU(), nn.Linear(inner, outer))


class Mixer(nn.Module):
    """Products over tokens and over channels in turn."""

    def __init__(self, tokens: int = 64, width: int = 96, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.over_tokens = nn.ModuleList(_between(tokens, 128) for _ in range(depth))
        self.over_channels = nn.ModuleList(_between(width, 192) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i, (tokens, channels) in enumerate(zip(self.over_tokens, self.over_channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        out: Tensor = self.head(x.mean(1))
        return out


class Unet(nn.Module):
    """Two levels down and up again, with connections across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def block(given: int, made: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())

        self.first, self.second, self.middle = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.third, self.up_again = block(4 * width, 2 * width), nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last, self.classes = block(2 * width, width), nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.first(x)
        two = self.second(functional.max_pool2d(one, 2))
        x = self.up(self.middle(functional.max_pool2d(two, 2)))
        x = self.up_again(self.third(torch.cat([x, two], 1)))
        out: Tensor = self.classes(self.last(torch.cat([x, one], 1)))
        return out.mean((2, 3))


class Coder(nn.Module):
    """Convolutions to a code and transposed ones back, of one dimension."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.code = nn.Sequential(
            nn.Conv1d(1, width, 8, 4, 2),
            nn.BatchNorm1d(width),
            nn.LeakyReLU(0.1),
            nn.Conv1d(width, 2 * width, 8, 4, 2),
            nn.ELU(),
            nn.ConvTranspose1d(2 * width, width, 8, 4, 2),
            nn.Softplus(),
            nn.ConvTranspose1d(width, 1, 8, 4, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.code(x)
        return out


class Reader(nn.Module):
    """A recurrent encoder step by step: a gate, a candidate, and their mix."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(WORDS, width), nn.GRUCell(width, width)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        state = x.new_zeros(x.shape[0], x.shape[2])
        for place in range(x.shape[1]):
            state = self.cell(x[:, place], state)
        out: Tensor = self.head(self.drop(state))
        return out


def _vision(name: str, **options: Any) -> nn.Module:
    def build() -> nn.Module:
        import torchvision

        model: nn.Module = getattr(torchvision.models, name)(**options, num_classes=CLASSES)
        return model

    return with_torchvision_schemas(build)


def _convnext() -> nn.Module:
    def build() -> nn.Module:
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        return ConvNeXt([CNBlockConfig(24, 48, 1), CNBlockConfig(48, None, 2)], num_classes=CLASSES)

    return with_torchvision_schemas(build)


def _text(architecture: str, **fields: Any) -> nn.Module:
    return random_weights(architecture, vocab_size=WORDS, **fields)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _rows(count: int, seed: int) -> Batch:
    made = _generator(seed)
    return torch.randn(count, 64, generator=made), torch.randint(CLASSES, (count,), generator=made)


def _images(count: int, size: int, seed: int) -> Batch:
    made = _generator(seed)
    return torch.randn(count, 3, size, size, generator=made), torch.randint(CLASSES, (count,), generator=made)


def _waves(count: int, length: int, seed: int) -> Batch:
    wave = torch.randn(count, 1, length, generator=_generator(seed))
    return wave, wave.clone()  # the same tensor twice is counted twice, and held once


def _words(count: int, length: int, seed: int) -> Batch:
    made = _generator(seed)
    return torch.randint(WORDS, (count, length), generator=made), torch.randint(CLASSES, (count,), generator=made)


def _next_words(count: int, length: int, seed: int) -> Batch:
    words = torch.randint(WORDS, (count, length + 1), generator=_generator(seed))
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def _named(count: int, length: int, seed: int) -> Batch:
    inputs, targets = _next_words(count, length, seed)
    return {"input_ids": inputs}, targets


def _classes(outputs: Any, targets: Tensor) -> Tensor:
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


_DECODER = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2}  # fmt: skip
_ENCODER = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
_images_32, _images_64, _named_64 = partial(_images, 16, 32), partial(_images, 8, 64), partial(_named, 8, 64)
_VIT = {"image_size": 32, "patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}


def _both_sides(seed: int) -> Batch:
    words, targets = _next_words(8, 32, seed)
    return {"input_ids": words, "decoder_input_ids": words.clone()}, targets  # as the waves: one tensor is held once


CASES: Mapping[str, Case] = {
    "mlp": (partial(_mlp, 512, 3, nn.ReLU), partial(_rows, 2048), _classes),
    "mlp, deep": (partial(_mlp, 128, 12, nn.Tanh), partial(_rows, 2048), _classes),
    "mlp, norms": (partial(_mlp, 256, 4, nn.GELU, norm=True), partial(_rows, 1024), _classes),
    "mixer": (Mixer, _images_32, _classes),
    "resnet": (examples.tiny_resnet, _images_32, _classes),
    "resnet, wide": (partial(examples.tiny_resnet, width=48), partial(_images, 8, 32), _classes),
    "unet": (Unet, partial(_images, 4, 64), _classes),
    "coder": (Coder, partial(_waves, 8, 2048), functional.mse_loss),
    "reader": (Reader, partial(_words, 32, 16), _classes),
    "lstm": (partial(examples.LSTMLanguageModel, WORDS, 64, 2), partial(_next_words, 8, 12), _classes),
    "gpt": (partial(examples.tiny_gpt, WORDS), partial(_next_words, 8, 32), _classes),
    "mobilenet": (partial(_vision, "mobilenet_v2", width_mult=0.25), _images_64, _classes),
    "squeezenet": (partial(_vision, "squeezenet1_1"), _images_64, _classes),
    "shufflenet": (partial(_vision, "shufflenet_v2_x0_5"), _images_64, _classes),
    "mnasnet": (partial(_vision, "mnasnet0_5"), _images_64, _classes),
    "densenet": (
        partial(_vision, "DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16), _images_64, _classes
    ),
    "vit": (partial(_vision, "VisionTransformer", **_VIT), _images_32, _classes),
    "convnext": (_convnext, _images_64, _classes),
    "gpt2": (partial(_text, "GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4), _named_64, _classes),
    "bert": (partial(_text, "BertForMaskedLM", **_ENCODER), _named_64, _classes),
    "electra": (partial(_text, "ElectraForMaskedLM", embedding_size=32, **_ENCODER), _named_64, _classes),
    "llama": (partial(_text, "LlamaForCausalLM", **_DECODER), _named_64, _classes),
    "qwen2": (partial(_text, "Qwen2ForCausalLM", **_DECODER), _named_64, _classes),
    "gemma": (partial(_text, "GemmaForCausalLM", head_dim=16, **_DECODER), _named_64, _classes),
    "t5": (partial(_text, "T5ForConditionalGeneration", **_T5), _both_sides, _classes),
}  # fmt: skip
"""Name → model, batch, loss."""
