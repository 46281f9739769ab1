"""The networks of the first run on a GPU: small ones, whose promises are checked, and large ones, which are timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def torchvision() -> Any:
    """Also beside a PyTorch that its compiled operators were not built for."""
    from monet.models.torchvision_schemas import with_torchvision_schemas

    return with_torchvision_schemas(lambda: importlib.import_module("torchvision"))


def small(network: str, *, tiny: bool) -> tuple[Any, Any]:
    import torch
    from torch import nn

    if network == "mlp":
        layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())]
        return nn.Sequential(*layers), torch.randn(2048, 256)
    if network == "attention":
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(4, 64, 64)
    size = 64 if tiny else 224
    return torchvision().models.resnet18(num_classes=10), torch.randn(4 if tiny else 32, 3, size, size)


def large(network: str, device: Any, *, tiny: bool) -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    """A model, its inputs, and a function of both that is the loss."""
    import torch

    torch.manual_seed(0)
    if network == "resnet50":
        batch, size = (2, 64) if tiny else (184, 224)
        x, y = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
        model = torchvision().models.resnet50().to(device)
        return (
            model,
            (x.to(device), y.to(device)),
            lambda m, x, y: torch.nn.functional.cross_entropy(m(x), y),
        )
    torchvision()
    import transformers

    sizes: dict[str, Any]
    if network == "gpt2":
        sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4} if tiny else {"n_layer": 24, "n_embd": 1024, "n_head": 16}
        batch, length, words = (2, 32, 500) if tiny else (8, 1024, 50257)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, vocab_size=words, **sizes))
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        if not tiny:
            sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        sizes["num_key_value_heads"] = sizes["num_attention_heads"] // 4
        batch, length, words = (2, 32, 500) if tiny else (4, 2048, 32000)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, vocab_size=words, **sizes))
    ids = torch.randint(0, words, (batch, length), device=device)
    return model.to(device, torch.bfloat16).train(), (ids,), lambda m, ids: m(input_ids=ids, labels=ids).loss


def checkpoint(model: Any) -> None:
    """By block."""
    from torch.utils.checkpoint import checkpoint

    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()
        return
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in stage:
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
