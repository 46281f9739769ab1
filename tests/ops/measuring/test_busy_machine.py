"""Other programs' work is told from the kernel's counters; what was measured beside it is marked and measured again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from monet.base.graph import Value
from monet.base.measurement import Measurement
from monet.capture import capture
from monet.ops.catalogue import catalogue
from monet.ops.measuring import profiling
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.busy_machine import OtherPrograms
from monet.ops.measuring.cache import ProfileCache
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation


def write(path: Path, *cores: tuple[int, int]) -> None:
    """(idle, busy) ticks a core."""
    lines = ["cpu 0 0 0 0 0 0 0 0 0 0"]
    lines += [f"cpu{k} {busy} 0 0 {idle - 1} 1 0 0 0 {busy} 0" for k, (idle, busy) in enumerate(cores)]
    path.write_text("\n".join([*lines, "intr 7"]) + "\n")


class Clock:
    """The time of this process's look at the counters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_s = self.own_s = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.passed_s)
        monkeypatch.setattr(time, "process_time", lambda: self.own_s)


@pytest.mark.parametrize(
    ("threads", "own_s", "took"),
    [(2, 0.0, True), (1, 0.0, True), (2, 0.5, True), (2, 1.2, False), (1, 1.0, False)],
)
def test_what_this_process_uses_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, own_s: float, took: bool
) -> None:
    """Of two cores, 1.6 are busy."""
    stat, clock = tmp_path / "stat", Clock(monkeypatch)
    write(stat, (100, 50), (100, 50))
    others = OtherPrograms(threads, stat)
    write(stat, (110, 140), (130, 120))
    clock.passed_s, clock.own_s = 1.0, own_s
    assert others.window_s == 1.0
    assert others.took_cores() == took
    assert others.busy == (pytest.approx(1.6 - own_s) if took else 0.0)
    clock.passed_s += 1.0
    write(stat, (210, 140), (230, 120))
    assert not others.took_cores(), "it looks at what was since the look before"


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert not OtherPrograms(2, tmp_path / "none").took_cores()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the machine is busy from now on: its last item."""
    state = [False]

    def took_cores(self: OtherPrograms) -> bool:
        self.busy = 1.3 if state[-1] else self.busy
        return state[-1]

    monkeypatch.setattr(OtherPrograms, "took_cores", took_cores)
    return state


def test_busy_measurements_are_made_again_when_it_is_quiet(
    tmp_path: Path, busy: list[bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "PERIOD_S", 0.0)
    offers = catalogue(capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)).graph)

    def profiled() -> tuple[int, str]:
        caplog.clear()
        with closing(ProfileCache(tmp_path / "profile.sqlite3")) as cache, caplog.at_level(logging.WARNING):
            return profiling.profile(offers, cache=cache).measured, caplog.text

    busy.append(True)
    count, said = profiled()
    assert count > 0 and f"1.3 cores busy while {count} of {count} operators" in said
    again, said = profiled()
    assert again == 0 and "measured again when the machine is quiet" in said
    busy.append(False)
    assert profiled() == (count, "")
    busy.append(True)
    assert profiled() == (0, ""), "what was measured in quiet stays"


def test_an_operator_that_is_measured_twice_counts_once(
    busy: list[bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of(references: dict[str, float]) -> list[str]:
        references.update(dict.fromkeys(references, math.inf))  # so that the second time is kept
        return list(references)

    monkeypatch.setattr(profiling, "disturbed", all_of)
    offers = catalogue(capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),)).graph)
    busy.append(True)
    with caplog.at_level(logging.WARNING):
        count = profiling.profile(offers).measured
    assert f"while {count} of {count} operators" in caplog.text


def test_the_most_disturbed_are_measured_again() -> None:
    """Of what has a reference, a quarter at most."""
    usual = {f"{k}": 1e-4 for k in range(6)}
    assert profiling.disturbed({**usual, "none": 0.0, "slow": 3.9e-4}) == []
    assert profiling.disturbed({**usual, "slow": 4.1e-4, "slower": 9e-4}) == ["slower", "slow"]
    assert profiling.disturbed({**usual, "a": 5e-4, "b": 7e-4, "c": 6e-4}) == ["b", "c"]
    assert profiling.disturbed({"alone": 1.0}) == [] == profiling.disturbed({})


@pytest.mark.parametrize("again_s", [1e-4, 1.0])
def test_what_was_disturbed_counts_as_it_was_when_it_was_not(monkeypatch: pytest.MonkeyPatch, again_s: float) -> None:
    """Of two measurements the one with the faster reference is kept."""
    model = nn.Sequential(*(layer for width in range(4, 12) for layer in (nn.Linear(width, width + 1), nn.ReLU())))
    offers = catalogue(capture(model, (torch.ones(2, 4),)).graph)
    first: list[str] = []
    measure = Bench.measure

    def measured(bench: Bench, run: Implementation, values: Mapping[str, Value]) -> Measurement:
        found, key = measure(bench, run, values), signature(run, values)
        is_first = not first
        disturbed = key in first or is_first
        first.append(key)
        bench.reference_s = (0.5 if is_first else again_s) if disturbed else 1e-4
        return replace(found, time_s=bench.reference_s) if disturbed else found

    monkeypatch.setattr(Bench, "measure", measured)
    found = profiling.profile(offers).measurements
    assert first.count(first[0]) == 2 and len(first) == len(found) + 1
    assert found[first[0]].time_s == min(again_s, 0.5)
