"""PyTorch's global settings in the keys of measurements and captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import monet
from monet.base import torch_switches
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.model_key import model_key
from monet.ops.measuring.signature import environment

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
Setter = Callable[[Any], None]


MKLDNN: Any = torch.backends.mkldnn
CUDNN: Any = torch.backends.cudnn


def _attribute(of: Any, name: str) -> Setter:
    return lambda value: setattr(of, name, value)


ON_A_GPU: dict[str, tuple[Setter, Any, Any]] = {
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "cudnn.deterministic": (torch._C._set_cudnn_deterministic, True, False),
    "cudnn.benchmark": (torch._C._set_cudnn_benchmark, True, False),
    "tf32": (_attribute(torch.backends.cuda.matmul, "fp32_precision"), "tf32", "none"),
    "tf32 of cuDNN": (_attribute(CUDNN.conv, "fp32_precision"), "ieee", "tf32"),
    "reduced sums": (_attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"), False, True),
}
ON_THE_CPU: dict[str, tuple[Setter, Any, Any]] = {
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "oneDNN": (torch.backends.mkldnn.set_flags, False, True),
    "bfloat16": (_attribute(MKLDNN.matmul, "fp32_precision"), "bf16", "none"),
}
TRACED: dict[str, tuple[Setter, Any, Any]] = {
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "cudnn attention": (torch.backends.cuda.enable_cudnn_sdp, False, True),
    "flash": (torch.backends.cuda.enable_flash_sdp, False, True),
}


@pytest.fixture
def switched(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    set_to, value, before = request.param
    try:
        yield lambda: set_to(value)
    finally:
        set_to(before)


def each(cases: dict[str, tuple[Setter, Any, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("switched", cases.values(), ids=cases, indirect=True)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of a GPU that is not there, also where PyTorch is a build for one."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92500)
    for library in ("Cublas", "CublasLt"):
        monkeypatch.setattr(torch._C, f"_cuda_get{library}WorkspaceSize", lambda: 77, raising=False)


@pytest.mark.usefixtures("gpu")
@each(ON_A_GPU)
def test_measurements_of_a_gpu(switched: Callable[[], None]) -> None:
    before = environment(CUDA)
    switched()
    assert environment(CUDA) != before


@pytest.mark.usefixtures("gpu")
def test_libraries_and_variables_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found = environment(CUDA)
    for part in ("|CUBLAS_WORKSPACE_CONFIG=:4096:8", "|cuDNN=92500", "|cublas_workspace_size=77"):
        assert part in found
    assert "threads" not in found, "a GPU's kernels ask for the same under any number of them"


def test_measurements_of_the_cpu_as_it_begins() -> None:
    assert torch_switches.cost_switches("cpu") == ""


@each(ON_THE_CPU)
def test_measurements_of_the_cpu(switched: Callable[[], None]) -> None:
    before = environment(CPU)
    switched()
    assert environment(CPU) != before


@each(TRACED)
def test_captures(switched: Callable[[], None]) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    before = model_key(model, (x,), {}, gradients_leave=True)
    assert before is not None and before == model_key(model, (x,), {}, gradients_leave=True)
    switched()
    assert model_key(model, (x,), {}, gradients_leave=True) != before


def test_a_precision_by_its_newer_name_is_no_crash() -> None:
    """PyTorch's older functions raise once that is set."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        guard = ModelGuard(model)
        assert guard.difference() is None
        planned = monet.MonetModule(model, monet.plan(model, (x,), budget="10MB"))
        planned(x).sum().backward()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
