"""Memory that kernels ask for on the other threads of their parallel loops (the gradient of fused attention does)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import monet
from monet.capture import capture
from monet.native import allocator
from monet.ops.catalogue import catalogue
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import implementations
from monet.plans.plan import Plan


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Two workers, on however few cores: their number is what matters."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True).float().square().sum()


def a_model() -> Attention:
    torch.manual_seed(0)
    return Attention().bfloat16()


def an_input(seed: int) -> torch.Tensor:
    return torch.randn(4, 48, 32, generator=torch.Generator().manual_seed(seed)).bfloat16()


def a_plan(model: nn.Module) -> Plan:
    return monet.plan(model, (an_input(0),), budget="100%", accumulate=True, time_limit_s=5.0)


def test_their_requests_are_recorded() -> None:
    made = catalogue(capture(a_model(), (an_input(0),)).graph)
    bench = Bench()
    attention = [i for i in implementations(made) if "flash_attention" in i.call_name]
    assert attention
    for implementation in attention:
        requests = bench.measure(implementation, made.values).requests
        assert [r.workers for r in requests[:-1]] == [False] * (len(requests) - 1)
        assert requests[-1].workers
        assert requests[-1].bytes > 0
        assert requests[-1].bytes % (2 * 64) == 0, "two workers' stacks of 64-byte blocks"


def test_they_are_served_from_the_arena() -> None:
    model = a_model()
    plan = a_plan(model)
    assert any(step.workers for step in plan.steps)
    module = monet.MonetModule(model, plan)
    arena = module._step.runner.arena
    assert arena is not None
    module(an_input(0)).backward()  # the arena and the gradients are there from now on
    for seed in (1, 2):
        loss = module(an_input(seed))
        ones = torch.ones_like(loss)
        before = allocator.live_bytes()
        allocator.reset_peak()
        torch.autograd.backward(loss, ones)
        assert allocator.peak_bytes() == before
    assert arena.statistics().misses == 0


def test_what_does_not_fit_is_a_miss() -> None:
    query = an_input(0).unflatten(-1, (4, 8)).transpose(1, 2)
    attended, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)
    arguments = (attended, query, query, query, attended, sums, 0.0, False)

    def misses(crew: tuple[int, int]) -> int:
        arena = allocator.Arena([[]], 1 << 20, [crew])
        arena.map()
        allocator.gather_crew()
        arena.enter(0)
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*arguments)
        arena.leave()
        found = arena.statistics().misses
        arena.close()
        return found

    on_this_thread = misses((1 << 20, 0))
    assert misses((128, 0)) > on_this_thread


def test_a_users_thread_that_runs_operators_meanwhile_is_left_alone() -> None:
    model, other = a_model(), a_model()
    module = monet.MonetModule(model, a_plan(model))
    arena = module._step.runner.arena
    assert arena is not None

    def gradients(run: nn.Module, of: nn.Module, seed: int) -> list[torch.Tensor]:
        of.zero_grad(set_to_none=True)
        run(an_input(seed)).backward()
        return [p.grad.clone() for p in of.parameters() if p.grad is not None]

    def others_gradients() -> None:
        torch.set_num_threads(3)
        while not done.is_set():
            found.append(gradients(other, other, 7))

    expected = {seed: gradients(other, other, seed) for seed in range(8)}
    done, found = threading.Event(), list[list[torch.Tensor]]()
    thread = threading.Thread(target=others_gradients)
    thread.start()
    try:
        for _ in range(20):
            for seed, wanted in expected.items():
                for one, right in zip(gradients(module, model, seed), wanted, strict=True):
                    assert torch.equal(one, right)
    finally:
        done.set()
        thread.join()
    assert found
    for gradient in found:
        for one, right in zip(gradient, expected[7], strict=True):
            assert torch.equal(one, right)
    assert arena.statistics().misses == 0
