"""One small member of each kind of model that diffusers trains: autoencoders, U-Nets, and transformers of images and
videos."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from monet.models.torchvision_schemas import with_torchvision_schemas

_DOWN, _UP = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
_HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}


def diffusers() -> Any:
    def load() -> Any:
        found = importlib.import_module("diffusers")
        _ = found.UNet2DModel  # imports what the others need, torchvision among it
        return found

    return with_torchvision_schemas(load)


def members() -> Iterator[str]:
    library = diffusers()
    return (name for name in _MEMBERS if hasattr(library, name))


def build(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A model, and what it is called with."""
    settings, inputs = _MEMBERS[name]
    return getattr(diffusers(), name)(**settings), [inputs()]


def _images(channels: int = 4, side: int = 16, *, name: str = "sample") -> dict[str, Tensor]:
    return {name: torch.randn(2, channels, side, side)}


def _noisy(channels: int = 4, side: int = 16, *, name: str = "sample") -> dict[str, Tensor]:
    return {**_images(channels, side, name=name), "timestep": torch.tensor([3, 500])}


def _text(width: int = 32, length: int = 7) -> dict[str, Tensor]:
    return {"encoder_hidden_states": torch.randn(2, length, width)}


def _flux() -> dict[str, Tensor]:
    return {
        "hidden_states": torch.randn(2, 16, 4), "timestep": torch.rand(2), **_text(),
        "pooled_projections": torch.randn(2, 32), "img_ids": torch.randn(16, 3), "txt_ids": torch.randn(7, 3),
    }  # fmt: skip


_MEMBERS: dict[str, tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "AutoencoderKL": (
        {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2,
         "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 4},
        lambda: _images(3, 32),
    ),
    "AutoencoderKLTemporalDecoder": (
        {"block_out_channels": (32,)}, lambda: {**_images(3, 32), "num_frames": 2},
    ),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (32, 32), "decoder_block_out_channels": (32, 32), "num_encoder_blocks": (1, 1),
         "num_decoder_blocks": (1, 1)},
        lambda: _images(3, 32),
    ),
    "AutoencoderDC": (
        {"latent_channels": 4, "attention_head_dim": 8, "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
         "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (8, 16),
         "decoder_block_out_channels": (8, 16), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
         "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)),
         "decoder_norm_types": ("rms_norm", "rms_norm"), "decoder_act_fns": ("silu", "silu")},
        lambda: _images(3, 32),
    ),
    "VQModel": ({"block_out_channels": (32,)}, lambda: _images(3, 32)),
    "UNet1DModel": (
        {"block_out_channels": (32, 64), "extra_in_channels": 64, "in_channels": 2, "out_channels": 2,
         "down_block_types": ("DownBlock1DNoSkip", "AttnDownBlock1D"),
         "up_block_types": ("AttnUpBlock1D", "UpBlock1DNoSkip")},
        lambda: {"sample": torch.randn(2, 2, 64), "timestep": torch.tensor([3, 500])},
    ),
    "UNet2DModel": (
        {"block_out_channels": (32, 64), "norm_num_groups": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
         "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "layers_per_block": 1},
        lambda: _noisy(3, 32),
    ),
    "UNet2DConditionModel": (
        {"block_out_channels": (32, 64), "down_block_types": _DOWN, "up_block_types": _UP, "layers_per_block": 1,
         "cross_attention_dim": 32, "norm_num_groups": 8},
        lambda: {**_noisy(), **_text()},
    ),
    "UNet3DConditionModel": (
        {"block_out_channels": (32, 64), "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
         "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "layers_per_block": 1, "cross_attention_dim": 32,
         "attention_head_dim": 8},
        lambda: {"sample": torch.randn(2, 4, 3, 16, 16), "timestep": torch.tensor([3, 500]), **_text()},
    ),
    "ControlNetModel": (
        {"block_out_channels": (32, 64), "down_block_types": _DOWN, "layers_per_block": 1, "cross_attention_dim": 32,
         "norm_num_groups": 8, "conditioning_embedding_out_channels": (16, 32)},
        lambda: {**_noisy(), **_text(), "controlnet_cond": torch.randn(2, 3, 32, 32)},
    ),
    "Transformer2DModel": (
        {**_HEADS, "in_channels": 32, "cross_attention_dim": 32},
        lambda: {**_images(32, name="hidden_states"), **_text()},
    ),
    "DiTTransformer2DModel": (
        {**_HEADS, "num_layers": 2, "sample_size": 16},
        lambda: {**_noisy(name="hidden_states"), "class_labels": torch.tensor([1, 2])},
    ),
    "PixArtTransformer2DModel": (
        {**_HEADS, "num_layers": 2, "sample_size": 16, "cross_attention_dim": 32, "caption_channels": 32,
         "use_additional_conditions": False},
        lambda: {**_noisy(name="hidden_states"), **_text(), "added_cond_kwargs": {}},
    ),
    "SD3Transformer2DModel": (
        {**_HEADS, "sample_size": 16, "in_channels": 4, "num_layers": 2, "joint_attention_dim": 32,
         "caption_projection_dim": 32, "pooled_projection_dim": 32, "out_channels": 4},
        lambda: {**_noisy(name="hidden_states"), **_text(), "pooled_projections": torch.randn(2, 32)},
    ),
    "FluxTransformer2DModel": (
        {**_HEADS, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "joint_attention_dim": 32,
         "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        _flux,
    ),
    "AuraFlowTransformer2DModel": (
        {**_HEADS, "sample_size": 16, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "joint_attention_dim": 32,
         "caption_projection_dim": 32, "pos_embed_max_size": 256},
        lambda: {**_images(name="hidden_states"), **_text(), "timestep": torch.rand(2)},
    ),
    "SanaTransformer2DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_cross_attention_heads": 2,
         "cross_attention_head_dim": 16, "cross_attention_dim": 32, "caption_channels": 32, "sample_size": 16},
        lambda: {**_noisy(name="hidden_states"), **_text()},
    ),
    "LTXVideoTransformer3DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 32, "num_layers": 2,
         "caption_channels": 32},
        lambda: {"hidden_states": torch.randn(2, 32, 4), **_text(), "timestep": torch.rand(2), "num_frames": 2,
                 "encoder_attention_mask": torch.ones(2, 7, dtype=torch.bool), "height": 4, "width": 4},
    ),
    "WanTransformer3DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64, "num_layers": 2,
         "rope_max_seq_len": 32},
        lambda: {"hidden_states": torch.randn(2, 4, 2, 8, 8), "timestep": torch.tensor([3, 500]), **_text()},
    ),
    "CogVideoXTransformer3DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "time_embed_dim": 8, "text_embed_dim": 32, "num_layers": 2,
         "sample_width": 8, "sample_height": 8, "sample_frames": 9, "max_text_seq_length": 7},
        lambda: {"hidden_states": torch.randn(2, 3, 4, 8, 8), **_text(), "timestep": torch.tensor([3, 500])},
    ),
    "CogView4Transformer2DModel": (
        {**_HEADS, "in_channels": 4, "out_channels": 4, "num_layers": 2, "text_embed_dim": 32, "time_embed_dim": 8,
         "condition_dim": 4, "rope_axes_dim": (8, 8), "sample_size": 16},
        lambda: {**_noisy(name="hidden_states"), **_text(), "original_size": torch.full((2, 2), 16.0),
                 "target_size": torch.full((2, 2), 16.0), "crop_coords": torch.zeros(2, 2)},
    ),
    "PriorTransformer": (
        {**_HEADS, "num_layers": 2, "embedding_dim": 32, "num_embeddings": 7},
        lambda: {"hidden_states": torch.randn(2, 32), "timestep": torch.tensor([3, 500]), **_text(),
                 "proj_embedding": torch.randn(2, 32)},
    ),
    "Lumina2Transformer2DModel": (
        {"sample_size": 16, "in_channels": 4, "hidden_size": 24, "num_layers": 2, "num_refiner_layers": 1,
         "num_attention_heads": 3, "num_kv_heads": 1, "multiple_of": 2, "axes_dim_rope": (4, 2, 2),
         "axes_lens": (128, 128, 128), "cap_feat_dim": 32},
        lambda: {**_images(name="hidden_states"), **_text(), "timestep": torch.rand(2),
                 "encoder_attention_mask": torch.ones(2, 7, dtype=torch.bool)},
    ),
    "StableAudioDiTModel": (
        {"sample_size": 4, "in_channels": 4, "num_layers": 2, **_HEADS, "num_key_value_attention_heads": 2,
         "out_channels": 4, "cross_attention_dim": 16, "time_proj_dim": 8, "global_states_input_dim": 8,
         "cross_attention_input_dim": 32},
        lambda: {"hidden_states": torch.randn(2, 4, 4), "timestep": torch.tensor([3, 500]), **_text(),
                 "global_hidden_states": torch.randn(2, 1, 8),
                 "rotary_embedding": (torch.randn(5, 16), torch.randn(5, 16))},
    ),
}  # fmt: skip
