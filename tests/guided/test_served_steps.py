"""Steps over a profile-guided arena: what is served, what is not, and that results are eager's bit for bit."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from guided_steps import Training, same, small_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import monet
from monet.api.guided import ProfileGuidedArena
from monet.api.guided.arena import _OPEN
from monet.api.guided.placement import place as made
from monet.errors import ConfigError, ExecutionError
from monet.native.allocator import _tensor_bytes, available, live_bytes, peak_bytes, reset_peak, uncounted_bytes

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


def pair() -> tuple[Training, Training, ProfileGuidedArena]:
    return Training(), Training(), monet.profile_guided()


@pytest.mark.parametrize("zero_first", [False, True])
def test_a_static_step_is_served_after_the_first(zero_first: bool) -> None:
    plain, guided, arena = Training(zero_first=zero_first), Training(zero_first=zero_first), monet.profile_guided()
    for number in range(8):
        expected = plain.step(number)
        with arena.step():
            found = guided.step(number)
        assert found == expected
    assert same(plain, guided)
    report = arena.report()
    assert report.steps == 8 and report.recorded_steps == 1 and report.failed_steps == 0
    assert report.served > 0.8 * report.requests
    assert report.arena_bytes >= report.bound_bytes > 0
    # Adam's state is made in the first step alone, so one more plan may be made, and then none.
    assert report.plans <= 2
    missed, plans = report.missed + report.moved, report.plans
    for number in range(8, 12):
        with arena.step():
            guided.step(number)
    assert arena.report().missed + arena.report().moved == missed and arena.report().plans == plans
    assert str(arena.report()).startswith("profile-guided arena: 12 steps, 1 of them")


def test_a_step_finds_the_memory_of_the_last_one() -> None:
    """Served requests lie in the arena, and the arena is all that such a step needs beside what it keeps."""
    arena = monet.profile_guided()
    places: list[int] = []

    def step() -> None:
        inside = [torch.zeros(1000), torch.ones(5000)]
        places.append(inside[0].data_ptr())
        del inside[0]
        torch.empty(700)

    for _ in range(3):
        with arena.step():
            step()
    assert places[1] == places[2]
    before = live_bytes()
    reset_peak()
    with arena.step():
        step()
    assert peak_bytes() == live_bytes() == before


def test_as_a_decorator() -> None:
    arena = monet.profile_guided()

    @arena.step()
    def double(value: Tensor) -> Tensor:
        """Twice."""
        return (value + value).clone()

    inputs = torch.arange(100.0)
    for _ in range(4):
        assert torch.equal(double(inputs), 2 * inputs)
    assert arena.report().steps == 4 and double.__doc__ == "Twice."


def test_what_a_step_leaves_behind_stays_whole() -> None:
    arena = monet.profile_guided()
    kept: list[Tensor] = []
    for number in range(12):
        with arena.step():
            parts = [torch.full((100 + k,), float(number)) for k in range(10)]
            if number in (3, 4, 8):  # of places: the recorded step has freed all of them
                kept += parts[::2]
            del parts
    assert [float(t[0]) for t in kept] == [n for n in (3.0, 4.0, 8.0) for _ in range(5)]
    assert all(bool((t == t[0]).all()) for t in kept)
    assert arena.report().moved > 0


def test_outputs_and_gradients_of_an_earlier_step() -> None:
    plain, guided, arena = pair()
    outputs: list[Tensor] = []
    gradients: list[Tensor] = []
    for number in range(6):
        for training, step in ((plain, contextlib.nullcontext()), (guided, arena.step())):
            inputs, targets = training.batch(number)
            with step:
                output = training.model(inputs)
                nn.functional.cross_entropy(output, targets).backward()
            outputs.append(output)
            gradients += [p.grad for p in training.model.parameters() if p.grad is not None]
            training.optimizer.zero_grad()  # the lists still hold them
    assert all(torch.equal(a, b) for a, b in zip(outputs[::2], outputs[1::2], strict=True))
    count = len(gradients) // 12
    for number in range(6):
        at = 2 * number * count
        assert all(
            torch.equal(a, b)
            for a, b in zip(gradients[at : at + count], gradients[at + count : at + 2 * count], strict=True)
        )


def noting(seen: list[Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    def note(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
        seen.append(outputs[0].clone())

    return note


def test_backward_twice_hooks_and_a_graph_that_is_kept() -> None:
    plain, guided, arena = pair()
    seen: dict[int, list[Tensor]] = {0: [], 1: []}
    for which, training in enumerate((plain, guided)):
        next(training.model.children()).register_full_backward_hook(noting(seen[which]))
        held: Any = None
        for number in range(6):
            inputs, targets = training.batch(number)
            with arena.step() if training is guided else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(training.model(inputs.requires_grad_()), targets)
                loss.backward(retain_graph=True)
                loss.backward(retain_graph=number % 2 == 0)
                training.optimizer.step()
                training.optimizer.zero_grad()
            held = loss  # its graph outlives the step in every other one
        del held
    assert same(plain, guided)
    assert all(torch.equal(a, b) for a, b in zip(seen[0], seen[1], strict=True))


def test_an_error_in_a_step_teaches_nothing() -> None:
    plain, guided, arena = pair()
    for number in range(6):
        plain.step(number)
        with arena.step():
            guided.step(number)
        with pytest.raises(ZeroDivisionError), arena.step():
            torch.ones(10 + number)
            raise ZeroDivisionError
    assert same(plain, guided)
    report = arena.report()
    assert report.failed_steps == 6 and report.steps == 6 and report.plans <= 2


def test_larger_steps_are_planned_anew_and_smaller_ones_are_not() -> None:
    plain, guided, arena = pair()
    rows = [16, 8, 16, 12, 32, 16, 32, 24, 8, 32]
    plans = []
    for number, count in enumerate(rows):
        plain.step(number, count)
        with arena.step():
            guided.step(number, count)
        plans.append(arena.report().plans)
    assert same(plain, guided)
    largest = rows.index(32)
    assert plans[largest] > plans[largest - 1]
    assert plans[-1] == plans[largest + 1]


def test_kinds_of_steps_share_one_arena() -> None:
    plain, guided, arena = pair()
    for number in range(12):
        rows = (8, 16, 32)[number % 3]
        plain.step(number, rows)
        with arena.step(key=rows):
            guided.step(number, rows)
    assert same(plain, guided)
    report = arena.report()
    assert report.kinds == 3 and report.recorded_steps == 3
    before = report.plans
    for number in range(12, 15):
        with arena.step(key=(8, 16, 32)[number % 3]):
            guided.step(number, (8, 16, 32)[number % 3])
    assert arena.report().plans == before and arena.report().missed == report.missed


def test_only_the_last_kinds_are_kept() -> None:
    arena = monet.profile_guided(max_plans=2)
    for key in (1, 2, 3, 1):
        with arena.step(key=key):
            torch.ones(100 * key)
    assert arena.report().kinds == 2 and arena.report().recorded_steps == 4


def test_interrupted_parts_are_neither_recorded_nor_served() -> None:
    arena = monet.profile_guided()
    counts = []
    for number in range(6):
        with arena.step():
            first = torch.ones(1000)
            with arena.interrupted():
                arena.interrupt()
                varying = [torch.full((n + 1,), float(number)) for n in range(number)]
                arena.resume()
                more = torch.zeros(number + 1)
            second = first + 1
            assert float(second[0]) == 2.0 and len(varying) == number and len(more) == number + 1
            del first, second, varying, more
        counts.append(arena.report())
    assert counts[-1].missed == counts[-1].moved == 0 and counts[-1].plans == 1
    with arena.step():
        with pytest.raises(ExecutionError, match=r"without an interrupt"):
            arena.resume()
        arena.interrupt()  # and the step ends without a resume
    with arena.step():
        torch.ones(1000)


def test_two_arenas_and_one_inside_the_other() -> None:
    plain, guided = [Training(), Training()], [Training(), Training()]
    outer, inner = monet.profile_guided(), monet.profile_guided()
    for number in range(6):
        for training in plain:
            training.step(number)
        with outer.step():
            inputs, targets = guided[0].batch(number)
            loss = nn.functional.cross_entropy(guided[0].model(inputs), targets)
            generator = torch.get_rng_state()
            with inner.step():
                guided[1].step(number)
            torch.set_rng_state(generator)
            loss.backward()
            guided[0].optimizer.step()
            guided[0].optimizer.zero_grad()
    assert all(same(a, b) for a, b in zip(plain, guided, strict=True))
    assert outer.report().served > 0 and inner.report().served > 0


def test_a_planned_module_inside_a_step_keeps_its_own_arena() -> None:
    model, inputs = small_model(), torch.randn(16, 32)
    made = monet.plan(model, (inputs,), budget="100%", time_limit_s=5)
    planned = monet.MonetModule(model, made)
    arena = monet.profile_guided()
    for _ in range(5):
        with arena.step():
            planned(inputs).square().mean().backward()
            model.zero_grad()
    assert arena.report().steps == 5


def test_misuse_says_what_is_wrong() -> None:
    arena = monet.profile_guided()
    with pytest.raises(ExecutionError, match=r"interrupt\(\) outside of a step"):
        arena.interrupt()
    with pytest.raises(ExecutionError, match="no plan to draw"):
        arena.html("nowhere.html")
    assert "no plan yet" in str(arena.report())
    with arena.step():
        with pytest.raises(ExecutionError, match="open already"), arena.step():
            pass
        torch.ones(3)
    for wrong in (
        {"limit": 0},
        {"layout_s": float("nan")},
        {"limit": "6QB"},
        {"limit": "50%"},
        {"limit": "1B"},
        {"max_plans": 0},
        {"layout_s": -1.0},
    ):
        with pytest.raises(ConfigError):
            monet.profile_guided(**wrong)


def test_what_is_no_step_is_refused() -> None:
    arena = monet.profile_guided()

    def generator() -> Iterator[int]:
        yield 1

    async def coroutine() -> None: ...

    for function in (generator, coroutine):
        with pytest.raises(ConfigError, match=f"{function.__name__} is a generator or a coroutine"):
            arena.step()(function)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ExecutionError, match="make another one"):
            copied(arena)


def test_a_layout_that_is_interrupted_is_made_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, place = monet.profile_guided(), "monet.api.guided.arena.place"

    def interrupted(*_: Any) -> Any:
        monkeypatch.setattr(place, made)
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    with pytest.raises(KeyboardInterrupt), arena.step():
        torch.ones(1000)
    for _ in range(2):
        with arena.step():
            torch.ones(1000)
    assert arena.report().plans == 1 and arena.report().served == 1


def test_another_arena_does_not_hide_what_was_there_before() -> None:
    first = monet.profile_guided()
    for _ in range(2):
        with first.step():
            torch.ones(1_000_000)
    holds = monet_holds()
    second = monet.profile_guided(limit=holds + 4_000_000)
    del first
    with second.step(), pytest.raises(torch.OutOfMemoryError):
        torch.ones(4_000_000)
    assert second.report().peak_bytes <= holds + 4_000_000


def test_tensors_without_memory_are_not_counted() -> None:
    before = _tensor_bytes()
    with FakeTensorMode():
        fake = torch.nn.Linear(1 << 16, 1 << 16)
    functional = torch._to_functional_tensor(torch.ones(2)) if hasattr(torch, "_to_functional_tensor") else None
    real = torch.ones(1000)
    assert _tensor_bytes() - before <= real.numel() * 4 + 8
    del fake, functional


def test_an_arena_that_is_forgotten_in_a_step_stays_for_it() -> None:
    monet.profile_guided().step().__enter__()
    gc.collect()
    kept = torch.ones(1000)
    (forgotten,) = _OPEN
    forgotten._end(failed=False)
    assert not _OPEN and float(kept.sum()) == 1000


def test_a_limit_is_an_error_that_names_the_request() -> None:
    held = torch.ones(1000)
    arena = monet.profile_guided(limit=monet_holds() + 4_000_000)
    for _ in range(3):
        with arena.step():
            torch.ones(500_000)
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"request 1 of the step, for 8000000 bytes, is .* above the limit"),
        arena.step(),
    ):
        small = torch.ones(10)
        torch.ones(2_000_000)
    del small
    with arena.step():  # and goes on
        torch.ones(500_000)
    assert arena.report().failed_steps == 1 and held.sum() == 1000
    assert arena.report().peak_bytes <= monet_holds() + 4_000_000


def monet_holds() -> int:
    """What torch holds now, as an arena that is made now counts it."""
    return uncounted_bytes() + live_bytes()


def test_threads() -> None:
    """Other threads free what a step has requested, and request for themselves; two train, each over its own arena."""
    plain, guided = [Training(), Training()], [Training(), Training()]
    lock = threading.Lock()  # torch's generator is one for all threads
    failures: list[BaseException] = []

    def train(training: Training, arena: ProfileGuidedArena | None) -> None:
        try:
            for number in range(8):
                with arena.step() if arena is not None else contextlib.nullcontext():
                    parts = [torch.full((64,), float(number)) for _ in range(5)]
                    thread = threading.Thread(target=parts.clear)
                    thread.start()
                    with lock:
                        training.step(number)
                    thread.join()
        except BaseException as error:
            failures.append(error)

    for training in plain:
        train(training, None)
    arenas = [monet.profile_guided(), monet.profile_guided()]
    threads = [threading.Thread(target=train, args=pair) for pair in zip(guided, arenas, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(same(a, b) for a, b in zip(plain, guided, strict=True))


def test_a_second_thread_is_refused() -> None:
    arena = monet.profile_guided()
    refused: list[str] = []

    def other() -> None:
        for call in (lambda: arena.step().__enter__(), arena.interrupt):
            try:
                call()
            except ExecutionError as error:
                refused.append(str(error))

    with arena.step():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 2 and "one thread" in refused[0] and "this thread" in refused[1]


class _Numbers(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((64,), float(index)) * torch.ones(64)


def test_data_loader_workers_that_are_made_inside_a_step() -> None:
    arena = monet.profile_guided()
    for _ in range(3):
        with arena.step():
            loader = torch.utils.data.DataLoader(_Numbers(), batch_size=4, num_workers=1)
            sums = [float(batch.sum()) for batch in loader]
        assert sums == [64.0 * sum(range(k, k + 4)) for k in (0, 4, 8)]


def test_all_memory_comes_back() -> None:
    before = live_bytes()
    arena = monet.profile_guided()
    kept = []
    for _ in range(4):
        with arena.step():
            kept.append(torch.ones(1000) + 1)
            torch.ones(3000)
    assert live_bytes() > before
    del arena
    assert bool((torch.stack(kept) == 2).all())
    kept.clear()
    assert live_bytes() == before


def test_the_page_is_whole_and_names_its_requests(tmp_path: Path) -> None:
    guided, arena = Training(), monet.profile_guided()
    for number in range(3):
        with arena.step():
            guided.step(number)
    arena.html(tmp_path / "arena.html")
    text = (tmp_path / "arena.html").read_text()
    assert text.count("<rect ") > 20 and "request 0:" in text and "proven least" in text
    assert text.rstrip().endswith("</html>") and "http" not in text


def test_inference() -> None:
    model, arena = small_model().eval(), monet.profile_guided()
    inputs = torch.randn(16, 32)
    expected = model(inputs)
    for _ in range(5):
        with torch.inference_mode(), arena.step():
            found = model(inputs)
        assert torch.equal(found, expected)
    assert arena.report().served > 0 and arena.report().plans == 1


def test_the_arena_shrinks_to_what_its_plans_need() -> None:
    arena = monet.profile_guided()
    before = live_bytes()
    for number in range(4):
        with arena.step():
            if number == 0:
                torch.ones(100_000)  # as an optimiser makes its state, and more
            torch.ones(1_000)
            torch.ones(2_000)
    assert arena.report().arena_bytes == live_bytes() - before == 8_000


def test_steps_that_end_in_another_order_than_they_began() -> None:
    outer, inner = monet.profile_guided(), monet.profile_guided()
    for number in range(4):
        first, second = outer.step(), inner.step()
        first.__enter__()
        held = torch.full((100,), float(number))
        second.__enter__()
        outer.interrupt()
        more = torch.full((200,), float(number))
        outer.resume()
        first.__exit__(None)
        last = torch.full((300,), float(number))
        if number == 3:
            del first, outer  # and inner's step ends in one that is gone
        second.__exit__(None)
        after = torch.full((400,), float(number))
        assert all(bool((t == number).all()) for t in (held, more, last, after))


def test_what_stays_in_the_arena_is_planned_around() -> None:
    """A block that nobody foresaw, and that is kept for good, lies in a gap; later steps leave it there."""
    arena, kept = monet.profile_guided(), []

    def step(number: int) -> None:
        first, second = torch.ones(1000), torch.ones(500)
        del first
        if number == 5:
            kept.append(torch.full((900,), 7.0))  # where the first one was
        third = torch.ones(1000)
        del second, third

    for number in range(12):
        with arena.step():
            step(number)
    strayed = arena.report().moved + arena.report().missed
    with arena.step():
        step(12)
    assert arena.report().moved + arena.report().missed == strayed  # no request is elsewhere than planned any more
    assert bool((kept[0] == 7).all())
    before = live_bytes()
    with arena.step(key="larger"):
        torch.ones(100_000)
    # The old arena keeps the pages of what is held, and the new one has its size.
    assert live_bytes() - before <= 400_000 + 2 * 4096 and bool((kept[0] == 7).all())


def test_the_first_step_of_a_kind_uses_the_arena_of_others() -> None:
    arena = monet.profile_guided()
    with arena.step(key=1):
        torch.ones(10_000)
        torch.ones(10_000)
    before = live_bytes()
    reset_peak()
    with arena.step(key=2):
        first = torch.ones(3_000)
        second = torch.ones(5_000)
        whole = first.sum().item(), second.sum().item()  # an assert here would hold what it compares
        del first, second
    assert peak_bytes() == before and whole == (3_000, 5_000)
    assert arena.report().recorded_steps == 2
