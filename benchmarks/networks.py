"""Networks that are trained for step time against peak, with their loss, inputs and the blocks that users checkpoint.

The first eight are narrower or shorter than usual, so that a step takes about a second on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights


class Loss(nn.Module):
    """A network and its loss: the first output of transformers' models, or of classes or pixels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Tensor) -> Tensor:
        if len(args) == 1:
            result = self.network(input_ids=args[0], labels=args[0], return_dict=False)
            loss: Tensor = result[0]
            return loss
        return functional.cross_entropy(self.network(args[0]), args[1])


def _language(architecture: str, **config: Any) -> nn.Module:
    return Loss(random_weights(architecture, **config))


def _vision(name: str, **config: Any) -> nn.Module:
    def make() -> nn.Module:
        import torchvision

        network: nn.Module = getattr(torchvision.models, name)(**config)
        return network

    return Loss(with_torchvision_schemas(make))


def _unet() -> nn.Module:
    from monet.models.config import load_config
    from monet.models.model_loading import build_model

    return Loss(build_model(load_config("unet.yaml")))


def _tokens(batch: int, length: int, words: int) -> tuple[Tensor, ...]:
    return (torch.randint(words, (batch, length)),)


def _images(batch: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))


def _pixels() -> tuple[Tensor, ...]:
    return torch.randn(2, 3, 304, 208), torch.zeros(2, 304, 208, dtype=torch.int64)


# Name → model, inputs, and the classes of what users checkpoint.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], tuple[str, ...]]] = {
    "bert": (
        partial(_language, "BertForMaskedLM", hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                intermediate_size=1024, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("BertLayer",),
    ),
    "gpt2": (
        partial(_language, "GPT2LMHeadModel", n_embd=256, n_layer=6, n_head=4, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("GPT2Block",),
    ),
    "llama": (
        partial(_language, "LlamaForCausalLM", hidden_size=256, intermediate_size=704, num_hidden_layers=6,
                num_attention_heads=4, num_key_value_heads=4, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("LlamaDecoderLayer",),
    ),
    "vit": (
        partial(_vision, "VisionTransformer", image_size=128, patch_size=16, num_layers=6, num_heads=4, hidden_dim=256,
                mlp_dim=1024),
        partial(_images, 16, 128), ("EncoderBlock",),
    ),
    "swin": (partial(_vision, "swin_t"), partial(_images, 4, 128), ("SwinTransformerBlock",)),
    "convnext": (partial(_vision, "convnext_tiny"), partial(_images, 4, 128), ("CNBlock",)),
    "resnet50": (partial(_vision, "resnet50"), partial(_images, 8, 128), ("Bottleneck",)),
    "unet": (_unet, _pixels, ("ResidualUnit",)),
    # Of realistic width:
    "bert-base": (partial(_language, "BertForMaskedLM"), partial(_tokens, 8, 256, 30522), ("BertLayer",)),
    "llama-512": (
        partial(_language, "LlamaForCausalLM", hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
                num_attention_heads=8, num_key_value_heads=8, vocab_size=32000),
        partial(_tokens, 4, 256, 32000), ("LlamaDecoderLayer",),
    ),
    "resnet50-224": (partial(_vision, "resnet50"), partial(_images, 16, 224), ("Bottleneck",)),
}  # fmt: skip


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().train()


def inputs_of(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return MODELS[name][1]()


def blocks_of(name: str, model: nn.Module) -> list[nn.Module]:
    """What users checkpoint."""
    return [m for m in model.modules() if type(m).__name__ in MODELS[name][2]]
