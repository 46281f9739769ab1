"""Gradients lie in the arena: whatever a loop does with them, results are eager's, and the peak is told.

Each loop runs five steps beside eager's on fresh inputs; gradients must equal eager's bit by bit.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from slow_cases import slow_but
from torch import Tensor, nn

import monet
from monet.native import allocator

pytestmark = pytest.mark.skipif(not allocator.available(), reason="no C++ compiler")

STEPS = 5
WIDTH = 96  # a weight takes nine pages, a bias less than one


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


@pytest.fixture(scope="module")
def plans() -> dict[str, monet.Plan]:
    model, x = _model(), torch.ones(64, WIDTH)
    return {
        gradients: monet.plan(model, x, budget="100%", time_limit_s=5.0, gradients=gradients)
        for gradients in ("freed", "kept")
    }


class Pair:
    """A model run by a plan, and the same model run by eager, over the same batches."""

    def __init__(self, plan: monet.Plan) -> None:
        self.model, self.eager = _model(), _model()
        self.planned = monet.MonetModule(self.model, plan)
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in (self.model, self.eager)]
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> Tensor:
        return torch.randn(64, WIDTH, generator=self.generator)

    def losses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.planned(x).square().mean(), self.eager(x).square().mean()

    def zero(self, *, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def check(self) -> None:
        for (name, p), q in zip(self.model.named_parameters(), self.eager.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None
            assert torch.equal(p.grad, q.grad), name
            assert torch.equal(p, q), name


def _backward(pair: Pair) -> None:
    for loss in pair.losses(pair.batch()):
        loss.backward()


def plain(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        _backward(pair)
        pair.update()
        pair.check()
        yield
        pair.zero()


def tutorial(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        pair.zero()
        _backward(pair)
        pair.check()
        pair.update()
        yield


def zero_between(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        losses = pair.losses(pair.batch())
        pair.zero()
        for loss in losses:
            loss.backward()
        pair.check()
        pair.update()
        yield


def in_place(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        pair.zero(set_to_none=False)
        _backward(pair)
        pair.check()
        pair.update()
        yield


def accumulated(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        for _ in range(3):
            _backward(pair)
            pair.check()
            yield
        pair.update()
        pair.zero()


def clipped(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        _backward(pair)
        for model in (pair.model, pair.eager):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        pair.check()
        pair.update()
        yield
        pair.zero()


def scaled(pair: Pair) -> Iterator[None]:
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2) for _ in range(2)]
    for _ in range(STEPS):
        for loss, scaler, optimizer in zip(pair.losses(pair.batch()), scalers, pair.optimizers, strict=True):
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        pair.check()
        yield
        pair.zero()


def reference(pair: Pair) -> Iterator[None]:
    """Somebody keeps the gradients of every step; their contents must not change."""
    kept: list[tuple[Tensor, Tensor]] = []
    for _ in range(STEPS):
        pair.zero()
        _backward(pair)
        pair.check()
        kept += [
            (p.grad, q.grad.clone())
            for p, q in zip(pair.model.parameters(), pair.eager.parameters(), strict=True)
            if p.grad is not None and q.grad is not None
        ]
        pair.update()
        yield
        for held, copied in kept:
            assert torch.equal(held, copied)


def views(pair: Pair) -> Iterator[None]:
    """A numpy view and a raw pointer, of one gradient among many."""
    kept: list[tuple[Any, int, np.ndarray]] = []
    for step in range(STEPS):
        pair.zero()
        _backward(pair)
        pair.check()
        grad = pair.model.get_parameter(f"{2 * (step % 3)}.weight").grad
        assert grad is not None
        kept.append((grad.numpy(), grad.data_ptr(), grad.numpy().copy()))
        pair.update()
        yield
        for view, pointer, copied in kept:
            assert np.array_equal(view, copied)
            raw = np.ctypeslib.as_array((ctypes.c_float * copied.size).from_address(pointer))
            assert np.array_equal(raw, copied.ravel())


def averaged(pair: Pair) -> Iterator[None]:
    """A moving average over gradients, written to in place between steps."""
    mean: list[Tensor] = []
    expected: list[Tensor] = []
    for _ in range(STEPS):
        _backward(pair)
        pair.check()
        now = [p.grad for p in pair.model.parameters() if p.grad is not None]
        now_eager = [p.grad for p in pair.eager.parameters() if p.grad is not None]
        if not mean:
            mean, expected = now, now_eager
        else:
            torch._foreach_lerp_(mean, now, 0.1)
            torch._foreach_lerp_(expected, now_eager, 0.1)
        assert all(torch.equal(a, b) for a, b in zip(mean, expected, strict=True))
        pair.update()
        yield
        pair.zero()


def interrupted(pair: Pair) -> Iterator[None]:
    """An exception between forward and backward, with gradients of the step before still there."""
    for step in range(STEPS):
        try:
            losses = pair.losses(pair.batch())
            if step % 2:
                raise RuntimeError("a loader failed")
        except RuntimeError:
            losses = pair.losses(pair.batch())
        pair.zero()
        for loss in losses:
            loss.backward()
        pair.check()
        pair.update()
        yield


def freed_elsewhere(pair: Pair) -> Iterator[None]:
    """Another thread lets go of the gradients while the next steps run."""
    held: list[list[Tensor]] = []
    for _ in range(STEPS):
        _backward(pair)
        pair.check()
        held.append([p.grad for p in pair.model.parameters() if p.grad is not None])
        thread = threading.Thread(target=held.pop)
        pair.update()
        pair.zero()
        thread.start()
        _backward(pair)
        thread.join()
        pair.check()
        yield
        pair.zero()


def copied_module(pair: Pair) -> Iterator[None]:
    for _ in range(STEPS):
        _backward(pair)
        copy.deepcopy(pair.model)
        pair.zero()
        _backward(pair)
        pair.check()
        pair.update()
        yield
        pair.zero()


QUIET: dict[str, Callable[[Pair], Iterator[None]]] = {
    f.__name__: f for f in (plain, tutorial, clipped, scaled, copied_module)
}
"""They free gradients before the next forward pass."""
TOLD: dict[str, Callable[[Pair], Iterator[None]]] = {
    f.__name__: f for f in (zero_between, in_place, accumulated, reference, views, averaged, interrupted)
}
"""They hold some."""


def _peaks(loop: Iterator[None]) -> list[int]:
    """Of each step: the most bytes that torch held."""
    peaks = []
    gc.collect()
    allocator.reset_peak()
    for _ in loop:
        peaks.append(allocator.peak_bytes())
        gc.collect()
        allocator.reset_peak()
    return peaks


@pytest.mark.parametrize("name", QUIET)
def test_gradients_equal_eagers_and_nothing_is_told(
    name: str, plans: dict[str, monet.Plan], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        peaks = _peaks(QUIET[name](Pair(plans["freed"])))
    assert not caplog.records
    assert len(peaks) == STEPS
    assert peaks[-1] <= peaks[1], "no step holds more than an earlier one"


@pytest.mark.parametrize("name", TOLD)
def test_what_is_held_is_right_and_told_once(
    name: str, plans: dict[str, monet.Plan], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _peaks(TOLD[name](Pair(plans["freed"])))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "zero_grad()" in told[0] and "accumulate=True" in told[0]


def test_freed_by_another_thread_while_a_step_runs(plans: dict[str, monet.Plan]) -> None:
    for _ in freed_elsewhere(Pair(plans["freed"])):
        pass


@pytest.mark.parametrize("loop", [zero_between, plain, tutorial, interrupted])
def test_a_plan_for_kept_gradients_expects_them(
    loop: Callable[[Pair], Iterator[None]], plans: dict[str, monet.Plan], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _peaks(loop(Pair(plans["kept"])))
    assert not caplog.records


def test_a_plan_for_kept_gradients_does_not_expect_sums(
    plans: dict[str, monet.Plan], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        _peaks(in_place(Pair(plans["kept"])))
    assert "when the backward pass makes new ones" in caplog.text


def test_the_plan_of_freed_gradients_is_smaller(plans: dict[str, monet.Plan]) -> None:
    freed, kept = plans["freed"], plans["kept"]
    gradients = kept.fixed["gradients"]
    assert gradients == sum(4 * p.numel() for p in _model().parameters())
    assert freed.fixed["gradients"] == 0
    assert sum(buffer.bytes for buffer in freed.buffers if buffer.leaves) == gradients
    assert freed.peak_bytes < kept.peak_bytes


def test_all_memory_comes_back(plans: dict[str, monet.Plan]) -> None:
    """Moves leave nothing behind: neither pages that are counted, nor arenas that nobody needs."""
    gc.collect()
    before = allocator.live_bytes()
    pair = Pair(plans["freed"])
    for _ in zip(range(3), reference(pair), strict=False):
        pass
    held = [p.grad for p in pair.model.parameters()]
    del pair
    gc.collect()
    assert allocator.live_bytes() > before
    assert all(g is not None and bool(g.isfinite().all()) for g in held)
    del held
    gc.collect()
    assert allocator.live_bytes() == before


def test_what_is_told_is_what_is_held(plans: dict[str, monet.Plan]) -> None:
    """Whole pages of the gradients that are held, and not a byte more."""
    pair = Pair(plans["freed"])
    _backward(pair)
    weight = pair.model.get_parameter("0.weight").grad
    assert weight is not None
    pair.zero()
    gc.collect()
    live = allocator.live_bytes()
    _backward(pair)
    runner = pair.planned._step.runner
    offset, pages = weight.data_ptr() % 4096, 4096
    assert runner.held_bytes == -(-(offset + weight.nbytes) // pages) * pages
    pair.zero()
    gc.collect()
    assert allocator.live_bytes() == live + runner.held_bytes


def test_two_programs_over_one_arena() -> None:
    """A gradient that one of them has made is not overwritten by the other."""
    first = allocator.Arena([[(4096 * 4, 0)]], 4096 * 8, leaves=[{0}])
    second = allocator.Arena([[(4096 * 8, 0)]], 4096 * 8)
    assert first.ready() == 0
    second.share(first)
    first.enter(0)
    held = torch.empty(4096, dtype=torch.float32)
    first.leave()
    held.fill_(3.0)
    assert second.ready() == 4096 * 4
    second.enter(0)
    other = torch.empty(8192, dtype=torch.float32)
    second.leave()
    other.fill_(7.0)
    assert bool((held == 3.0).all()) and bool((other == 7.0).all())
    assert first.contains(other.data_ptr()) and not first.contains(held.data_ptr())
    del other, held
    second.close()
    first.close()


@pytest.mark.parametrize("seed", slow_but([0], range(4)))
def test_random_blocks_survive_moves(seed: int) -> None:
    """Blocks of random places and sizes, held or not over rounds of steps: each keeps its bytes, and the pages that
    move keep theirs."""
    generator = np.random.default_rng(seed)
    places, at = [], 0
    for _ in range(40):
        size = int(generator.integers(1, 300)) * 64
        places.append((size, at))
        at += size
    arena = allocator.Arena([places], at, leaves=[set(range(len(places)))])
    held: list[tuple[Tensor, int]] = []
    for number in range(12):
        gc.collect()
        arena.ready()
        arena.enter(0)
        blocks = [torch.empty(size, dtype=torch.uint8) for size, _ in places]
        arena.leave()
        for block in blocks:
            block.fill_(number)
        assert all(bool((block == content).all()) for block, content in held)
        kept = generator.random(len(places)) < 0.2
        held = [pair for pair in held if generator.random() < 0.7]
        held += [(block, number) for block, keep in zip(blocks, kept, strict=True) if keep]
        del blocks, block
    assert all(bool((block == content).all()) for block, content in held)
    held.clear()
    arena.close()


def test_more_places_than_there_are() -> None:
    """Whoever keeps a gradient of every step is told to keep clones, before anything is overwritten."""
    arena = allocator.Arena([[(4096, 0)]], 8192, leaves=[{0}])
    held: list[Tensor] = []
    with pytest.raises(monet.MonetError, match=r"clones of gradients"):
        for number in range(1500):
            arena.ready()
            arena.enter(0)
            held.append(torch.empty(1024))
            arena.leave()
            held[-1].fill_(number)
    assert len(held) > 500
    assert all(bool((block == number).all()) for number, block in enumerate(held))
    held.clear()
    gc.collect()
    assert arena.ready() == 0, "its memory is there again once they are gone"
    arena.close()
