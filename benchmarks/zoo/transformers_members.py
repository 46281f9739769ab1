"""Every model type of transformers, with a configuration made small: few layers, heads and words."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from monet.models.torchvision_schemas import with_torchvision_schemas

MOST_PARAMETERS = 100_000_000
WORDS = 512
SMALL: dict[str, int] = {
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "encoder_num_layers", "num_blocks"), 2),
    **dict.fromkeys(("decoder_num_layers", "depth", "num_hidden_groups"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_decoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "decoder_hidden_size"), 64),
    **dict.fromkeys(("encoder_hidden_size", "embedding_size", "projection_dim", "d_embed"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "dim_feedforward"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_dim"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 32),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "n_input_layers": 1,
    "n_recurrent_layers": 1,
    "n_output_layers": 0,
    "vocab_size": WORDS,
}  # fmt: skip
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")
"""What is made small where a configuration takes nothing else."""

OFF = {"layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
"""LayerDrop and SpecAugment, which monet refuses by the names of these settings."""


def members() -> Iterator[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    yield from sorted(MODEL_MAPPING_NAMES)


def build(name: str) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A model of this type, and calls that it may take. Raises what transformers raises where none can be made."""
    if importlib.util.find_spec("torchvision") is not None:  # transformers imports it where it is
        with_torchvision_schemas(lambda: importlib.import_module("torchvision"))
    from transformers import AutoConfig, AutoModel

    failed: Exception | None = None
    made: tuple[nn.Module, list[dict[str, Any]]] | None = None
    for reduce in (_small, _shallow, _as_it_is):
        try:
            config = AutoConfig.for_model(name)
            reduce(config)
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
            if size > MOST_PARAMETERS:
                raise ValueError(f"{size:,} parameters")
            model = AutoModel.from_config(config)
            calls = list(_calls(config, model))
        except Exception as error:  # another way of making it small may do
            failed = failed or error
            continue
        running = [call for call in calls if _runs(model, call)]
        if running:
            return model, running[:1]
        made = made or (model, calls)
    if made is not None:
        return made
    assert failed is not None
    raise failed


def _runs(model: nn.Module, call: dict[str, Any]) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(**call)
    except Exception:  # whatever the model raises
        return False
    return True


def _small(config: Any) -> None:
    _set(config, SMALL)


def _shallow(config: Any) -> None:
    _set(config, {name: SMALL[name] for name in (*LAYERS, "vocab_size")})


def _as_it_is(config: Any) -> None:
    _set(config, {})


def _set(config: Any, sizes: dict[str, int]) -> None:
    from transformers import PretrainedConfig

    before = getattr(config, "num_hidden_layers", None)
    if hasattr(config, "mask_time_prob"):
        config.apply_spec_augment = False
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _set(value, sizes)
        elif name in sizes and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, name, min(value, sizes[name]))
        elif name.endswith("token_id") and isinstance(value, int) and value >= WORDS and sizes:
            setattr(config, name, WORDS - 1 - sum(map(ord, name)) % 16)
        elif name in OFF:
            setattr(config, name, OFF[name])
        elif isinstance(value, list) and name in ("layer_types", "mlp_layer_types") and sizes:
            kinds = list(dict.fromkeys(value))[: sizes["num_hidden_layers"]]  # some need one of each
            setattr(config, name, (kinds * sizes["num_hidden_layers"])[: sizes["num_hidden_layers"]])
        elif isinstance(value, dict) and "mrope_section" in value and "head_dim" in sizes:
            setattr(config, name, {**value, "mrope_section": [2, 3, 3]})
        elif isinstance(value, list) and name == "depths" and sizes:
            setattr(config, name, [1] * len(value))
    if before is not None and sizes:
        config.num_hidden_layers = min(before, sizes["num_hidden_layers"])


def _calls(config: Any, model: nn.Module) -> Iterator[dict[str, Any]]:
    """Calls by the names of what ``forward`` takes, the likeliest first."""
    takes = inspect.signature(model.forward).parameters
    words = getattr(config.get_text_config(), "vocab_size", None) or WORDS
    texts = torch.randint(3, min(words, WORDS) - 20, (2, 16))
    main = getattr(model, "main_input_name", "input_ids")
    frames = getattr(getattr(config, "vision_config", config), "num_frames", None) or 8
    videos = [torch.randn(1, frames, 3, side, side) for side in _sides(config)[:2]]
    parts: dict[str, list[Tensor]] = {
        "input_ids": [texts],
        "pixel_values_videos": videos,
        "decoder_input_ids": [texts[:, :8]],
        "pixel_values": [*(torch.randn(2, 3, side, side) for side in _sides(config)), *videos],
        "input_features": [
            torch.randn(shape) for shape in ((2, 80, 3000), (2, 128, 3000), (2, 100, 80), (2, 100, 160))
        ],
        "input_values": [torch.randn(2, 8000), torch.randn(2, 1, 8000), torch.randn(2, 1024, 128)],
    }
    needed = [name for name, of in takes.items() if of.default is inspect.Parameter.empty and name in parts]
    if "decoder_input_ids" in takes:
        needed.append("decoder_input_ids")
    names = list(dict.fromkeys([main, *needed])) if main in parts else needed
    others = ["input_ids"], ["pixel_values"], ["input_ids", "pixel_values"], ["pixel_values_videos"]
    for chosen in (names, [main], *others):
        if not chosen or not all(name in parts and name in takes for name in chosen):
            continue
        for turn in range(max(len(parts[name]) for name in chosen)):
            call: dict[str, Any] = {name: parts[name][min(turn, len(parts[name]) - 1)] for name in chosen}
            yield call
            if "input_ids" in call and "attention_mask" in takes:
                yield {**call, "attention_mask": torch.ones_like(texts)}
            if "input_ids" in call and "use_cache" in takes:
                yield {**call, "use_cache": False}


def _sides(config: Any) -> list[int]:
    vision = getattr(config, "vision_config", config)
    own = getattr(vision, "image_size", None)
    own = own[0] if isinstance(own, list | tuple) else own
    return list(dict.fromkeys(side for side in (own, 64, 224, 256, 512) if isinstance(side, int)))
