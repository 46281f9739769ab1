"""PyTorch's global settings that decide which operators are traced and which kernels run."""

from __future__ import annotations

import os
from typing import Any

import torch

# Where PyTorch is asked for them: what the older names of these ask for raises once a newer name was set.
_PRECISIONS = {
    "cpu": (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
    "cuda": (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
}
# Read once, when a library is first used.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "NVIDIA_TF32_OVERRIDE",
)


_DETERMINISTIC = "torch.are_deterministic_algorithms_enabled()"
_CPU_BEGINS_WITH = {_DETERMINISTIC: False, "torch.backends.mkldnn.enabled": True}


def tracing_switches() -> dict[str, Any]:
    """Those that decide which operators a model's forward pass is traced as, by the names that a user knows."""
    c = torch._C
    return {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        _DETERMINISTIC: c._get_deterministic_algorithms(),
        "torch.backends.cuda.flash_sdp_enabled()": c._get_flash_sdp_enabled(),
        "torch.backends.cuda.mem_efficient_sdp_enabled()": c._get_mem_efficient_sdp_enabled(),
        "torch.backends.cuda.math_sdp_enabled()": c._get_math_sdp_enabled(),
        "torch.backends.cuda.cudnn_sdp_enabled()": c._get_cudnn_sdp_enabled(),
        "torch.backends.cudnn.enabled": c._get_cudnn_enabled(),
    }


def kernel_switches(kind: str) -> dict[str, Any]:
    """Those that decide by which kernels operators run on that kind of device, ``cpu`` or ``cuda``."""
    c = torch._C
    precisions = {
        f"torch.backends.{library}.{of}.fp32_precision": c._get_fp32_precision_getter(library, of)
        for library, of in _PRECISIONS.get(kind, ())
    }
    if kind != "cuda":
        return {"torch.backends.mkldnn.enabled": c._get_mkldnn_enabled(), **precisions}
    return {
        "torch.backends.cudnn.benchmark": c._get_cudnn_benchmark(),
        "torch.backends.cudnn.deterministic": c._get_cudnn_deterministic(),
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
            c._get_cublas_allow_fp16_reduced_precision_reduction()
        ),
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
            c._get_cublas_allow_bf16_reduced_precision_reduction()
        ),
        "torch.backends.cuda.preferred_blas_library()": str(c._get_blas_preferred_backend()),
        "torch.backends.cuda.preferred_linalg_library()": str(c._get_linalg_preferred_backend()),
        **precisions,
    }


def switches() -> dict[str, Any]:
    """All of them."""
    return {**tracing_switches(), **kernel_switches("cpu"), **kernel_switches("cuda")}


def cost_switches(kind: str) -> str:
    """What decides what operators cost on that kind of device, for the key of a measurement: on a GPU all of it, on the
    CPU what is not as PyTorch begins with."""
    found = {_DETERMINISTIC: torch._C._get_deterministic_algorithms(), **kernel_switches(kind)}
    if kind == "cuda":
        found |= _gpu_libraries()
    else:
        found = {name: value for name, value in found.items() if value not in (_CPU_BEGINS_WITH.get(name), "none")}
    return "".join(f"|{name}={value}" for name, value in found.items())


def _gpu_libraries() -> dict[str, Any]:
    """Which libraries a GPU's kernels come from, and what decides their workspaces."""
    sizes = {
        name: getattr(torch._C, function)()
        for name, function in (
            ("cublas_workspace_size", "_cuda_getCublasWorkspaceSize"),
            ("cublaslt_workspace_size", "_cuda_getCublasLtWorkspaceSize"),
        )
        if hasattr(torch._C, function)
    }
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version(), **sizes, **variables}
