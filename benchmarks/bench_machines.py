"""Estimated against published steps: how far are the rates of machines that are not here from what people measured?

python benchmarks/bench_machines.py [--only llama]

Each row is a step that somebody published with its throughput, on one GPU or a GPU of several that split state and
batch. It is captured of fake tensors and estimated by the rates of ``monet fit --on``. ``ratio``: estimated seconds by
published ones. ``recomputed``: the share of the forward pass that the published step ran twice, and that is added to
the estimate. What an estimate leaves out: weight updates, communication, the input pipeline.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
import record
import torch

from monet.lab.experiments.configured import prepare_config
from monet.models.config import Config
from monet.ops.estimating.machines import machine_named
from monet.ops.offers.offering import Offering
from monet.pipeline.preparation import Preparing

EXAMPLES = "NVIDIA DeepLearningExamples, PyTorch, README of "
TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1 (FSDP, no compilation)"


@dataclass(frozen=True)
class Published:
    """``per_s``: samples a second of one GPU, or tokens where ``tokens`` says how many a sample has. ``gb_per_s``:
    where the memory is slower than the machine's usual one. ``held_out``: the rates' shares of peaks were chosen
    without it."""

    on: str
    config: Mapping[str, Any]
    per_s: float
    source: str
    tokens: int = 1
    recomputed: float = 0.0
    gb_per_s: float | None = None
    held_out: bool = False


def _images(batch: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "torchvision.models:resnet50",
        "inputs": [{"shape": [batch, 3, 224, 224]}],
        **more,
    }


def _tokens(
    architecture: str, batch: int, length: int, words: int, fields: dict[str, Any], **more: Any
) -> dict[str, Any]:
    ids = {"shape": [batch, length], "dtype": "int64", "high": words}
    return {
        "model": "monet.models.transformers:random_weights",
        "kwargs": {"architecture": architecture, "vocab_size": words, **fields},
        "inputs": {"input_ids": ids, "labels": ids},
        **more,
    }


_BERT_LARGE = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    "attn_implementation": "eager",
}  # fmt: skip
_LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192,
}  # fmt: skip
_LLAMA_7B = {**_LLAMA_8B, "intermediate_size": 11008, "num_key_value_heads": 32, "max_position_embeddings": 4096}
_RESNET = EXAMPLES + "ResNet50 v1.5"
_BERT = EXAMPLES + "BERT, pre-training on DGX-2, 2019"

PUBLISHED: dict[str, Published] = {
    "ResNet-50, A100, TF32": Published("a100", _images(256), 938, _RESNET),
    "ResNet-50, A100, mixed": Published("a100", _images(256, autocast="bfloat16"), 2470, _RESNET),
    "ResNet-50, V100, FP32": Published("v100", _images(128), 367, _RESNET),
    "ResNet-50, V100, mixed": Published("v100", _images(256, autocast="bfloat16"), 1200, _RESNET),
    "BERT-large 128, V100, FP32": Published(
        "v100", _tokens("BertForMaskedLM", 32, 128, 30522, _BERT_LARGE), 43.52, _BERT
    ),
    "BERT-large 128, V100, mixed": Published(
        "v100", _tokens("BertForMaskedLM", 64, 128, 30522, _BERT_LARGE, autocast="bfloat16"), 181.76, _BERT
    ),
    "BERT-large 512, V100, mixed": Published(
        "v100", _tokens("BertForMaskedLM", 8, 512, 30522, _BERT_LARGE, autocast="bfloat16"), 32.32, _BERT
    ),
    "Llama 3.1 8B, H100": Published(
        "h100", _tokens("LlamaForCausalLM", 2, 8192, 128256, _LLAMA_8B, dtype="bfloat16"), 5762, TITAN, tokens=8192,
        recomputed=0.5, gb_per_s=2400,
    ),
    "GPT-2 124M, A100": Published(
        "a100 40gb", _tokens("GPT2LMHeadModel", 12, 1024, 50304, {"attn_implementation": "eager"}, autocast="bfloat16"),
        12 / 0.25, "nanoGPT, README: 250 ms an iteration before PyTorch 2",
    ),
    "Llama 3 8B, A100": Published(
        "a100", _tokens("LlamaForCausalLM", 1, 8192, 128256, _LLAMA_8B, dtype="bfloat16"), 2973,
        "torchtitan, docs/performance.md of 2024 (FSDP2, selective activation checkpointing by operator)", tokens=8192,
        recomputed=0.5, held_out=True,
    ),
    "Llama 2 7B, A100": Published(
        "a100", _tokens("LlamaForCausalLM", 2, 4096, 32000, _LLAMA_7B, dtype="bfloat16"), 3700,
        "PyTorch blog, Maximizing training throughput using PyTorch FSDP, 2024 (no recomputation)", tokens=4096,
        held_out=True,
    ),
}  # fmt: skip


def _row(step: Published) -> dict[str, Any]:
    began = time.perf_counter()
    machine = machine_named(step.on)
    if step.gb_per_s is not None:
        machine = replace(machine, gb_per_s=step.gb_per_s)
    config = Config.model_validate(dict(step.config))
    rates = machine.rates(getattr(torch, config.autocast or config.dtype or "float32"))
    prepared = prepare_config(config, Preparing(costs=rates), Offering(exact=True))
    forward_s = sum(min(run.time_s for run in operator.implementations) for operator in prepared.problem.forward)
    estimated_s = prepared.eager.objective_s + step.recomputed * forward_s
    published_s = config.batch() * step.tokens / step.per_s
    return {
        "machine": machine.name, "estimated_s": estimated_s, "published_s": published_s,
        "ratio": estimated_s / published_s, "recomputed": step.recomputed, "held_out": step.held_out,
        "source": step.source,
        "eager_peak_bytes": prepared.eager_peak_bytes, "preparing_s": time.perf_counter() - began,
    }  # fmt: skip


@click.command()
@click.option("--only", default="", help="Only rows whose name has this in it; nothing is written then.")
def main(only: str) -> None:
    rows: dict[str, Any] = {}
    for name, step in PUBLISHED.items():
        if only.lower() in name.lower():
            rows[name] = row = _row(step)
            click.echo(f"{name:<28} {row['estimated_s']:.4f} s for {row['published_s']:.4f} s: {row['ratio']:.2f}")
    ratios = [row["ratio"] for row in rows.values()]
    click.echo(f"median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    if not only:
        click.echo(f"wrote {record.write('machines', rows)}")


if __name__ == "__main__":
    main()
