"""What is touched between two runs of an operator, as in a step."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from repository import ROOT
from torch import nn

from monet.base.graph import Value
from monet.capture import capture
from monet.native import allocator
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.measuring import bench, profiling
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import EVICTS, GPU_BETWEEN_BYTES, MOST_BETWEEN_BYTES, between_bytes


def offers(rows: int) -> Catalogue:
    return catalogue(capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.ones(rows, 8),)).graph)


def test_a_step_that_fits_in_the_nearest_cache_touches_nothing_else() -> None:
    assert between_bytes(offers(4).graph) == 0


def test_half_of_what_a_larger_step_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = offers(1 << 17).graph  # of 4 MiB a tensor
    held = sum(v.storage_bytes for name, v in graph.values.items() if graph.storage(name) == name)
    assert between_bytes(graph) == min(MOST_BETWEEN_BYTES["cpu"], 1 << (held.bit_length() - 2))
    monkeypatch.setitem(MOST_BETWEEN_BYTES, "cpu", held)
    assert held / 4 < between_bytes(graph) <= held / 2


@pytest.mark.parametrize("between", [0, 1 << 10])
def test_inputs_are_evicted_before_every_timed_run(between: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step that does not fit in the nearest cache; and what they hold stays."""
    evicted: list[torch.Tensor] = []
    evict = allocator.evict

    def noted(tensor: torch.Tensor) -> None:
        before = tensor.clone()
        evict(tensor)
        assert torch.equal(tensor, before)
        evicted.append(tensor)

    monkeypatch.setattr(allocator, "evict", noted)
    made, measuring = offers(1 << 10), Bench(between)
    (run,) = list(made.forward["addmm"].values())
    measuring.measure(run, made.values)
    inputs = {tensor.data_ptr() for tensor in evicted}
    wanted = 3 if between and EVICTS else 0  # bias, rows and weights
    assert len(inputs) == wanted and len(evicted) >= wanted * bench.LEAST_RUNS


def test_a_gpu_has_work_while_the_next_operator_is_launched() -> None:
    graph = offers(4).graph
    values = {name: replace(value, device=torch.device("cuda", 0)) for name, value in graph.values.items()}
    assert between_bytes(replace(graph, values=values)) == GPU_BETWEEN_BYTES


def test_it_is_touched_before_every_timed_run() -> None:
    made, touched = offers(4), Bench(1 << 10)
    runs = 1  # when it is made
    for run in implementations(made):
        touched.measure(run, made.values)
        runs += 1
    counts = touched._between.unique()
    assert counts.numel() == 1 and runs * bench.LEAST_RUNS <= counts.item() <= runs * bench.MOST_RUNS


def test_measurements_of_large_and_small_steps_are_kept_apart(tmp_path: Path) -> None:
    """One operator of both has one signature."""
    small = catalogue(capture(nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), (torch.ones(4, 8),)).graph)
    large = catalogue(capture(TwoSizes(), (torch.ones(4, 8), torch.ones(1 << 18, 8))).graph)
    with closing(ProfileCache(tmp_path / "profile.sqlite3")) as cache:
        first = profiling.profile(small, cache=cache)
        second = profiling.profile(large, cache=cache)
        assert first.measurements.keys() & second.measurements.keys()
        assert second.measured == len(second.measurements)
        assert profiling.profile(large, cache=cache).measured == 0


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.small(torch.relu(x)), self.large(torch.relu(y))


def test_inputs_take_few_of_the_arenas_that_a_process_has() -> None:
    """A joined list of a thousand tensors above a MiB took an arena each, of which there are ``kMaxArenas``."""
    source = (ROOT / "monet" / "native" / "arena.h").read_text()
    (most,) = re.findall(r"kMaxArenas = (\d+);", source)
    of_their_own = bench.MOST_INPUT_BYTES // bench.SMALL_BYTES
    shared = bench.MOST_INPUT_BYTES // (bench.SHARED_BYTES - bench.SMALL_BYTES)
    assert of_their_own + shared < int(most)
    made, cpu = Bench(), torch.device("cpu")
    for k in range(40):
        count = 300_000 + k
        made._tensor(Value(f"t{k}", (count,), (1,), 0, torch.float32, cpu, f"t{k}", 4 * count), (k, torch.float32, cpu))
    assert not made._homes and len(made._shared) < 4


def test_an_inputs_storage_is_as_large_as_the_values() -> None:
    """Whatever was measured in the same memory before: an operator may copy all of it."""
    made, place = Bench(), (0, torch.float32, torch.device("cpu"))
    for count in (64, 16):
        value = Value("x", (4, 2), (4, 1), 1, torch.float32, place[2], "x", 4 * count)
        tensor = made._tensor(value, place)
        assert tensor.untyped_storage().nbytes() == 4 * count
        assert (tensor.shape, tensor.stride(), tensor.storage_offset()) == ((4, 2), (4, 1), 1)
        assert tensor.data_ptr() == made._inputs[place].data_ptr() + 4
