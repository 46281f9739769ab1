"""How fast machines are that are not here: peaks that their makers publish, and what share of them training gets."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from monet.errors import ConfigError
from monet.ops.estimating.rates import Curve, Rates

PRODUCT_SHARE = 0.65
"""Of the peak of a machine's matrix units that large matrix products get in training."""
CONVOLUTION_SHARE = 0.35
"""The same of convolutions."""
PLAIN_SHARE = 0.85
"""Of its peak in float32 that both get without matrix units."""
MEMORY_SHARE = 0.8
"""Of the peak of a memory that a kernel gets which does little else than read and write.

These four, and ``KERNEL_S``, are round numbers near those that explain the published steps of
``benchmarks/bench_machines.py`` best, but for those that it holds out; its record has what is left of each.
"""
KERNEL_S = 5e-6
"""From the start of one kernel to the start of the next on a GPU, whatever it does: eager PyTorch issues them one by
one."""

CORE_TFLOPS = 0.08
"""Of a core of a server in float32: 2.5 GHz, two fused multiply-adds of eight numbers a cycle (AVX2)."""
CORE_GB_PER_S = 6.4
"""32 cores share eight channels of DDR4-3200, 204.8 GB/s."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU as its maker describes it, or a CPU of so many cores.

    ``float32_tflops``, ``tf32_tflops``, ``half_tflops``: 10^12 floating-point operations a second of dense matrix
    products, in float32 as such, in TF32 (None where there is none) and in bfloat16 or float16 added up in float32.
    ``memory_gb`` (10^9 bytes): None for a CPU, whose memory is not known. ``workspace_mib``: of cuBLAS, which PyTorch
    keeps (its ``getChosenWorkspaceSize``). ``source``: where the figures are from. ``names``: what people call it.
    """

    name: str
    float32_tflops: float
    tf32_tflops: float | None
    half_tflops: float
    gb_per_s: float
    memory_gb: int | None
    workspace_mib: int
    source: str
    names: tuple[str, ...]
    cores: int | None = None

    def rates(self, dtype: torch.dtype) -> Rates:
        """Of kernels whose products are of ``dtype``: convolutions of float32 are in TF32 where the machine has it, as
        PyTorch does them unless it is told not to, and other products are not. Raises ``ConfigError`` for float64."""
        if dtype is torch.float64:
            raise ConfigError(f"no figures of {self.name} are known for float64: give --rates")
        halves = dtype in (torch.bfloat16, torch.float16)
        plain = self.float32_tflops * PLAIN_SHARE
        product, convolution = plain, plain
        if halves:
            product, convolution = self.half_tflops * PRODUCT_SHARE, self.half_tflops * CONVOLUTION_SHARE
        elif self.tf32_tflops is not None:
            convolution = self.tf32_tflops * CONVOLUTION_SHARE
        moved = self.gb_per_s * 1e9 * MEMORY_SHARE
        return Rates(
            f"{self.name}'s published rates in {'halves' if halves else 'float32'}: {self.source}",
            Curve.roofline(product * 1e12, moved),
            Curve(((1.0, 1 / moved),)),
            any_convolution=Curve.roofline(convolution * 1e12, moved),
            kernel_s=KERNEL_S if self.cores is None else 0.0,
            gpu=self.cores is None,
            threads=self.cores,
            kept_bytes=self.workspace_mib << 20,
        )


_SPARSE = "half of the data sheet's figures, which are with sparsity"
_SHEET = "the maker's data sheet"
_PAPER = "the architecture's whitepaper, added up in float32"

MACHINES = (
    Machine("P100 SXM2", 10.6, None, 21.2, 732, 16, 8, _SHEET, ("p100",)),
    Machine("V100 SXM2", 15.7, None, 125, 900, 32, 8, f"{_SHEET}; it has no bfloat16", ("v100",)),
    Machine("T4", 8.1, None, 65, 320, 16, 8, f"{_SHEET}; it has no bfloat16", ("t4",)),
    Machine("A10G", 31.2, 70, 70, 600, 24, 8, _SHEET, ("a10g", "a10")),
    Machine("A100 SXM 40GB", 19.5, 156, 312, 1555, 40, 8, _SHEET, ("a100 40gb", "a100 sxm4 40gb")),
    Machine("A100 SXM 80GB", 19.5, 156, 312, 2039, 80, 8, _SHEET, ("a100", "a100 80gb", "a100 sxm4 80gb")),
    Machine("L4", 30.3, 60, 121, 300, 24, 8, _SPARSE, ("l4",)),
    Machine("L40S", 91.6, 183, 362, 864, 48, 8, _SPARSE, ("l40s",)),
    Machine("H100 PCIe", 51, 378, 756, 2000, 80, 32, _SPARSE, ("h100 pcie",)),
    Machine("H100 SXM", 67, 494.7, 989.4, 3350, 80, 32, _SPARSE, ("h100", "h100 sxm5", "h100 80gb", "h100 80gb hbm3")),
    Machine("H200 SXM", 67, 494.7, 989.4, 4800, 141, 32, _SPARSE, ("h200",)),
    Machine("B200 SXM", 75, 1125, 2250, 8000, 180, 32, _SPARSE, ("b200",)),
    Machine("RTX 3090", 35.6, 35.6, 71, 936, 24, 8, _PAPER, ("rtx 3090", "3090")),
    Machine("RTX 4090", 82.6, 82.6, 165.2, 1008, 24, 8, _PAPER, ("rtx 4090", "4090")),
    Machine("RTX 5090", 104.8, 104.8, 209.5, 1792, 32, 32, _PAPER, ("rtx 5090", "5090")),
    Machine("MI300X", 163.4, 653.7, 1307.4, 5300, 192, 32, _SHEET, ("mi300x",)),
)
"""GPUs without sparsity."""

_CORES = re.compile(r"([0-9]+) ?cores?")
_MAKERS = re.compile(r"\b(nvidia|geforce|amd|instinct|tesla)\b|-")


def machine_named(text: str) -> Machine:
    """The machine that ``text`` names, as ``"h100"``, ``"RTX 4090"`` or ``"32-core"`` (a server's CPU).

    Raises ``ConfigError``, which names those that are known, for any other.
    """
    if not isinstance(text, str):
        raise ConfigError(f"a machine is named by text, as 'h100', not {text!r}")
    name = " ".join(_MAKERS.sub(" ", text.lower()).replace("rtx", "rtx ").split())
    cores = _CORES.fullmatch(name)
    if cores is not None and 0 < int(cores[1]) <= 1024:
        return _cpu(int(cores[1]))
    found = next((machine for machine in MACHINES if name in (machine.name.lower(), *machine.names)), None)
    if found is None:
        names = ", ".join(machine.names[0] for machine in MACHINES)
        raise ConfigError(f"no machine is known as {text!r}; known are {names}, and a number of cores, as 32-core")
    return found


def _cpu(cores: int) -> Machine:
    source = "assumed are 2.5 GHz, AVX2 and 6.4 GB/s of memory a core"
    peak = cores * CORE_TFLOPS
    return Machine(f"{cores} cores", peak, None, peak, cores * CORE_GB_PER_S, None, 0, source, (), cores)
