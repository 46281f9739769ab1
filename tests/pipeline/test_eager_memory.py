"""What eager's step asks the system for anew, beside what glibc's malloc does."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch
from slow_cases import slow_but

from monet.cli.commands.rendering import render_summary
from monet.ops.estimating.rates import parse_rates
from monet.pipeline.eager.memory import MAPPED_BYTES, asked_anew_bytes
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Preparing, prepare
from monet.planner.search import Solving

MIB = 1 << 20

# Allocates and writes blocks as their events say, twice, and prints the bytes of pages that the second time made.
SCRIPT = """
import ctypes, json, resource, sys
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # no huge pages: each fault is a page
libc.memalign.restype, libc.memalign.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
events = json.load(sys.stdin)
def step():
    places = {}
    for begins, number, size in events:
        if begins:
            places[number] = libc.memalign(64, size)
            libc.memset(places[number], 1, size)
        else:
            libc.free(places.pop(number))
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * 4096)
"""


def step_like(seed: int, layers: int, least: int, most: int) -> list[tuple[int, int, int]]:
    """Activations that are freed in the reverse order, and temporaries between."""
    rng = random.Random(seed)
    blocks = []
    for layer in range(layers):
        size = rng.randrange(least, most)
        blocks.append((3 * layer, 6 * layers - 3 * layer, size))
        blocks.append((3 * layer + 1, 3 * layer + 2, rng.randrange(least, most)))
    return blocks


def by_malloc(blocks: list[tuple[int, int, int]]) -> int:
    events = sorted(
        event for n, (begin, end, size) in enumerate(blocks) for event in ((begin, 1, n, size), (end, 0, n, size))
    )
    given = json.dumps([event[1:] for event in events])
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=given, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_requests_are_asked_for_each_time_and_small_ones_once() -> None:
    assert asked_anew_bytes([(0, 2, MAPPED_BYTES), (3, 4, MAPPED_BYTES)]) == 2 * MAPPED_BYTES
    assert asked_anew_bytes([(0, 2, MIB), (1, 3, MIB), (3, 4, 2 * MIB), (0, 9, MAPPED_BYTES - 1)]) == 0
    assert asked_anew_bytes([]) == 0


@pytest.mark.parametrize(
    ("least", "most"), slow_but([(2 * MIB, 80 * MIB)], [(34 * MIB, 60 * MIB), (2 * MIB, 80 * MIB)])
)
def test_malloc_makes_these_pages_anew(least: int, most: int) -> None:
    """At least these, and no more than all that is asked for."""
    if not sys.platform.startswith("linux"):
        pytest.skip("counts page faults of glibc's malloc")
    blocks = step_like(1, 8, least, most)
    asked, found = asked_anew_bytes(blocks), by_malloc(blocks)
    assert 0.98 * asked <= found <= 1.02 * sum(size for _, _, size in blocks)
    if least >= MAPPED_BYTES:
        assert found == pytest.approx(asked, rel=0.02)


def test_a_plan_says_what_eager_waits_for() -> None:
    """Of tensors of 40 MB; the step's share is in its overhead, and in what people read."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 4))
    example = torch.empty(2560, 256)
    prepared = prepare(model, (example,), {})
    assert prepared.eager_memory_s > 0
    assert prepared.eager_s == prepared.eager.objective_s + prepared.eager_memory_s
    summary = plan_prepared(prepared, "100%", Solving(time_limit_s=5)).summary
    assert summary.baseline_s == prepared.eager_s and summary.eager_memory_s == prepared.eager_memory_s
    assert summary.overhead == summary.objective_s / prepared.eager_s - 1
    assert "of it for memory asked for anew" in render_summary(summary, "MB")
    estimated = prepare(model, (example,), {}, Preparing(costs=parse_rates("300GFLOPS,20GB/s")))
    assert estimated.eager_memory_s == 0
    small = prepare(model, (example[:16],), {})
    assert small.eager_memory_s == 0
