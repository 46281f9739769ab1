"""Machines that are not here: what they are called, how fast they are, and what their kernels ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import monet
from monet.errors import ConfigError
from monet.ops.estimating.machines import KERNEL_S, MACHINES, MEMORY_SHARE, PRODUCT_SHARE, machine_named
from monet.ops.estimating.work import Work
from monet.pipeline.preparation import Prepared, Preparing, prepare

A100 = machine_named("a100")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "H100 SXM"), ("NVIDIA H100 SXM", "H100 SXM"), ("H100-PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("rtx 4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"), ("GeForce RTX 3090", "RTX 3090"), ("Tesla V100", "V100 SXM2"),
        ("a100", "A100 SXM 80GB"), ("a100-40gb", "A100 SXM 40GB"), ("32-core", "32 cores"), ("1 core", "1 cores"),
    ],
)  # fmt: skip
def test_names(text: str, name: str) -> None:
    assert machine_named(text).name == name


def test_names_are_of_one_machine_each() -> None:
    names = [name for machine in MACHINES for name in {machine.name.lower(), *machine.names}]
    assert len(names) == len(set(names)) and all(machine_named(name).name for name in names)


def test_no_figures_for_float64_and_no_numbers_for_names() -> None:
    with pytest.raises(ConfigError, match="float64"):
        A100.rates(torch.float64)
    with pytest.raises(ConfigError, match="named by text"):
        machine_named(4090)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "h1000", "0-core", "4090 ti", "100000 cores", "\u0663-core"])
def test_unknown_machines_are_told_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="known are p100, v100"):
        machine_named(text)


def test_seconds_are_of_the_roofline_and_of_the_dtype() -> None:
    halves, floats = A100.rates(torch.bfloat16), A100.rates(torch.float32)
    product = Work("aten.mm.default", 1e15, 10**9)
    assert halves.seconds(product) == pytest.approx(1e15 / (312e12 * PRODUCT_SHARE))
    assert floats.seconds(product) == pytest.approx(1e15 / (19.5e12 * 0.85))
    convolution = replace(product, convolution=True)
    assert floats.seconds(product) / floats.seconds(convolution) == pytest.approx(156 * 0.35 / (19.5 * 0.85))
    moved = 10**9 / (2039e9 * MEMORY_SHARE)
    assert halves.seconds(Work("copy", None, 10**9)) == pytest.approx(moved)
    assert halves.seconds(Work("thin product", 1e6, 10**9)) == pytest.approx(moved)
    assert halves.seconds(Work("small", None, 64)) == KERNEL_S
    cores = machine_named("32-core").rates(torch.float32)
    assert cores.seconds(Work("small", None, 64)) < KERNEL_S and not cores.gpu


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.project = nn.Linear(64, 192, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(2, -1, 4, 16).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def prepared(causal: bool, on: str) -> Prepared:
    costs = replace(machine_named(on).rates(torch.bfloat16), kernel_s=0.0)
    x = torch.randn(2, 2048, 64, dtype=torch.bfloat16)
    return prepare(Attention(causal), (x,), {}, Preparing(costs=costs))


def test_causal_attention_is_half_of_the_work() -> None:
    """Of long sequences, of which a row's products are most of the step."""
    assert 0.45 < prepared(True, "a100").eager.objective_s / prepared(False, "a100").eager.objective_s < 0.75


def test_a_gpu_asks_for_what_its_kernels_do_and_a_cpu_for_each_of_its_threads() -> None:
    """And PyTorch keeps a larger workspace on an H100 than on an A100."""
    few, many = prepared(True, "2-core").eager_peak_bytes, prepared(True, "32-core").eager_peak_bytes
    threads = torch.get_num_threads()
    assert many > few and torch.get_num_threads() == threads
    assert prepared(True, "a100").lowered.profile.environment.startswith("estimated by A100 SXM 80GB")
    assert prepared(True, "h100").eager_peak_bytes - prepared(True, "a100").eager_peak_bytes == 24 << 20  # workspaces


def test_fit_on_another_machine() -> None:
    model, example = nn.Sequential(nn.Linear(64, 64), nn.Tanh()), torch.empty(512, 64)
    answer = monet.fit(model, (example,), on="h100", batch=False, time_limit_s=1)
    assert answer.memory_bytes == 80 * 10**9 and answer.fits == "as it is"
    assert answer.estimated is not None and "H100 SXM" in answer.estimated
    with pytest.raises(ConfigError, match="leave one of the two out"):
        monet.fit(model, (example,), on="h100", estimate=True, rates="1GFLOPS,1GB/s")
    for on in (None, "8-core"):
        with pytest.raises(ConfigError, match="how much memory is there"):
            monet.fit(model, (example,), on=on)
