"""What a GPU's libraries keep, requested before a step and counted, on a GPU that is not there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monet.errors import ConfigError, ExecutionError
from monet.native import devices, gpu_libraries
from monet.ops.offers import generic

CUDA = torch.device("cuda", 0)
WORKSPACE = 32 << 20


class Gpu:
    """A workspace for each thread and stream, as cuBLAS has them."""

    def __init__(self) -> None:
        self.stream, self.is_capturing = 0, False
        self.workspaces: set[tuple[int, int]] = set()
        self.segments: list[dict[str, Any]] = []
        self.products = 0

    def run(self, device: torch.device) -> None:
        assert device == CUDA
        self.products += 1
        self.workspaces |= {(threading.get_ident(), self.stream), (-1, self.stream)}  # -1: autograd's thread

    def clear(self) -> None:
        self.workspaces.clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made, cuda = Gpu(), torch.cuda
    monkeypatch.setattr(gpu_libraries, "_products", made.run)
    monkeypatch.setattr(cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: made.is_capturing)
    monkeypatch.setattr(cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=made.stream))
    monkeypatch.setattr(cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(cuda, "memory_snapshot", lambda: made.segments)
    requested = {"requested_bytes.all.current"}
    monkeypatch.setattr(
        cuda, "memory_stats", lambda device: dict.fromkeys(requested, 1000 + WORKSPACE * len(made.workspaces))
    )
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", made.clear, raising=False)
    monkeypatch.setattr(gpu_libraries, "_ready", set())
    gpu_libraries.kept_bytes.cache_clear()
    yield made
    gpu_libraries.kept_bytes.cache_clear()


def test_both_threads_are_made_ready_once_a_stream(gpu: Gpu) -> None:
    for stream in (0, 0, 7, 0, 7):
        gpu.stream = stream
        gpu_libraries.make_ready(CUDA)
    assert gpu.products == 2 and len(gpu.workspaces) == 4
    other = threading.Thread(target=gpu_libraries.make_ready, args=(CUDA,))
    other.start()
    other.join()
    assert gpu.products == 3, "another thread has handles of its own"
    gpu_libraries.make_ready(torch.device("cpu"))
    assert gpu.products == 3


def test_nothing_runs_while_a_graph_is_captured(gpu: Gpu) -> None:
    gpu.is_capturing = True
    gpu_libraries.make_ready(CUDA)
    assert gpu.products == 0


@pytest.mark.parametrize("before", [False, True])
def test_both_workspaces_count_wherever_products_ran_before(gpu: Gpu, before: bool) -> None:
    if before:
        gpu_libraries.make_ready(CUDA)
    assert gpu_libraries.kept_bytes(CUDA) == 2 * WORKSPACE
    gpu.clear()
    assert gpu_libraries.kept_bytes(CUDA) == 2 * WORKSPACE, "a number of the process"
    assert gpu_libraries.kept_bytes(torch.device("cpu")) == 0


def test_a_graph_that_is_there_keeps_its_workspace(gpu: Gpu) -> None:
    gpu_libraries.make_ready(CUDA)
    had = set(gpu.workspaces)
    gpu.segments = [{"segment_pool_id": (0, 0)}, {"segment_pool_id": (0, 1)}]
    assert gpu_libraries.kept_bytes(CUDA) == 0
    assert gpu.workspaces == had


def test_products_run_on_both_threads() -> None:
    """For a CPU, whose backward pass is the same thread's: all that they need is there, also without gradients."""
    with torch.no_grad():
        gpu_libraries._products(torch.device("cpu"))


@pytest.mark.parametrize(
    ("backend", "benchmark", "said"),
    [("cudaMallocAsync", False, "backend:cudaMallocAsync"), ("native", True, r"cudnn\.benchmark is on")],
)
def test_set_up_in_a_way_that_cannot_be_planned(
    monkeypatch: pytest.MonkeyPatch, backend: str, benchmark: bool, said: str
) -> None:
    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: backend)
    before = torch.backends.cudnn.benchmark
    try:
        torch._C._set_cudnn_benchmark(benchmark)
        with pytest.raises(ConfigError, match=said):
            devices.require_plannable(CUDA)
        devices.require_plannable(torch.device("cpu"))
    finally:
        torch._C._set_cudnn_benchmark(before)


def test_without_a_gpu_nobody_counts_its_bytes() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert devices.peak_bytes(CUDA) is None


def test_a_draw_is_refused_by_name_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which device it draws on is told by the arguments; there is no such tensor here."""
    monkeypatch.setattr(generic, "_device", lambda args: CUDA)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ExecutionError, match=r"draws random numbers .* cannot be captured in a graph"):
        generic.draw(torch.ops.aten.bernoulli.p, torch.ones(3), 0.5)
