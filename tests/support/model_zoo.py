"""The models that people train, at a size for tests: from torchvision, transformers and monai, with random weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from monet.models.examples import LSTMLanguageModel
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights


@dataclass(frozen=True)
class Case:
    """``inputs(seed)``: positional and keyword inputs; floating inputs are noise."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]]

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return with_torchvision_schemas(self.make).train()


def _images(*shape: int) -> Callable[[int], tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]]:
    return lambda seed: ((torch.randn(shape, generator=torch.Generator().manual_seed(seed)),), {})


def _tokens(
    vocabulary: int, batch: int, length: int, *names: str
) -> Callable[[int], tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]]:
    """Tokens for each keyword; ``attention_mask`` leaves out the end of every second sequence."""

    def make(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        given = {n: torch.randint(3, vocabulary, (batch, length), generator=generator) for n in names}
        if "attention_mask" in given:
            mask = torch.ones(batch, length, dtype=torch.int64)
            mask[::2, -length // 4 :] = 0
            given["attention_mask"] = mask
        return (), given

    return make


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    module, _, attribute = name.rpartition(".")

    def make() -> nn.Module:
        found = importlib.import_module(f"torchvision.models{module and '.' + module}")
        model: nn.Module = getattr(found, attribute)(**options)
        return model

    return make


def _monai(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model: nn.Module = getattr(importlib.import_module("monai.networks.nets"), name)(**options)
        return model

    return make


def _language(architecture: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: random_weights(architecture, **options)


def _unet(dimensions: int) -> Callable[[], nn.Module]:
    return _monai(
        "UNet", spatial_dims=dimensions, in_channels=2, out_channels=2, channels=[4, 8, 16], strides=[2, 2],
        num_res_units=2, norm="BATCH" if dimensions == 2 else "INSTANCE",
    )  # fmt: skip


MODELS: dict[str, Case] = {
    "alexnet": Case(_vision("alexnet", num_classes=10), _images(2, 3, 64, 64)),
    "vgg11": Case(_vision("vgg11", num_classes=10), _images(2, 3, 32, 32)),
    "vgg11_bn": Case(_vision("vgg11_bn", num_classes=10), _images(2, 3, 32, 32)),
    "resnet18": Case(_vision("resnet18", num_classes=10), _images(4, 3, 64, 64)),
    "resnet50": Case(_vision("resnet50", num_classes=10), _images(2, 3, 64, 64)),
    "resnext": Case(
        _vision("resnext50_32x4d", num_classes=10),
        _images(4, 3, 64, 64),
    ),
    "googlenet": Case(_vision("googlenet", num_classes=10, aux_logits=True, init_weights=False), _images(4, 3, 64, 64)),
    "mobilenet_v2": Case(_vision("mobilenet_v2", num_classes=10, width_mult=0.5), _images(4, 3, 64, 64)),
    "mobilenet_v3": Case(_vision("mobilenet_v3_small", num_classes=10), _images(4, 3, 64, 64)),
    "mnasnet": Case(_vision("mnasnet0_5", num_classes=10), _images(4, 3, 64, 64)),
    "efficientnet": Case(_vision("efficientnet_b0", num_classes=10), _images(2, 3, 64, 64)),
    "densenet": Case(
        _vision("DenseNet", growth_rate=8, block_config=(2, 2, 2, 2), num_init_features=16, drop_rate=0.1),
        _images(4, 3, 64, 64),
    ),
    "unet": Case(_unet(2), _images(2, 2, 32, 32)),
    "unet3d": Case(_unet(3), _images(1, 2, 16, 16, 16)),
    "vit": Case(
        _vision(
            "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64,
            dropout=0.1, num_classes=10,
        ),
        _images(4, 3, 32, 32),
    ),
    "swin": Case(
        _vision(
            "SwinTransformer", patch_size=[2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=[4, 4],
            stochastic_depth_prob=0.1, num_classes=10,
        ),
        _images(4, 3, 32, 32),
    ),
    "resnet3d": Case(_vision("video.r3d_18", num_classes=10), _images(1, 3, 8, 32, 32)),
    "bert": Case(
        _language(
            "BertForMaskedLM", vocab_size=100, hidden_size=32, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
        ),
        _tokens(100, 4, 16, "input_ids", "attention_mask", "labels"),
    ),
    "gpt2": Case(
        _language(
            "GPT2LMHeadModel", vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=32,
            bos_token_id=0, eos_token_id=0,
        ),
        _tokens(100, 4, 16, "input_ids", "labels"),
    ),
    "xlm_roberta": Case(
        _language(
            "XLMRobertaForSequenceClassification", vocab_size=100, hidden_size=32,
            num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=32,
            pad_token_id=1,
        ),
        _tokens(100, 4, 16, "input_ids", "attention_mask"),
    ),
    "t5": Case(
        _language(
            "T5ForConditionalGeneration", vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2,
            num_heads=2, decoder_start_token_id=0,
        ),
        _tokens(100, 4, 16, "input_ids", "labels"),
    ),
    "lstm": Case(lambda: LSTMLanguageModel(100, 32, dropout=0.2), _tokens(100, 4, 6, "tokens")),
}  # fmt: skip
