"""Parts of a sweep by themselves: lists of budgets and variants, gap times, records, workers that die."""

from __future__ import annotations

import os
import signal
import threading
from fractions import Fraction
from pathlib import Path

import pytest
from made_up_profile import write_profile

from monet.base.amounts import ByteCount, PeakShare
from monet.errors import ConfigError
from monet.lab.sweep.budgets import parse_budgets
from monet.lab.sweep.cells import Cell
from monet.lab.sweep.gap_trace import GapTrace
from monet.lab.sweep.palette import look
from monet.lab.sweep.records import load_record, save_record
from monet.lab.sweep.source import Options, Source, cell_key, source_key
from monet.lab.sweep.units import unit_of
from monet.lab.sweep.variants import parse_variant, parse_variants
from monet.lab.sweep.workers import Workers
from monet.planner.schedules import MOVING, VARIANTS
from monet.planner.solution import Proof, Runs, Solution

GB = 10**9


@pytest.mark.parametrize(
    ("written", "budgets"),
    [
        ("5GB:7GB:1GB", [ByteCount(5 * GB), ByteCount(6 * GB), ByteCount(7 * GB)]),
        ("5GB:7.5GB:1GB", [ByteCount(5 * GB), ByteCount(6 * GB), ByteCount(7 * GB)]),
        ("5GB:5GB:1GB", [ByteCount(5 * GB)]),
        ("1GiB, 5GB:6GB:1GB,5GB", [ByteCount(2**30), ByteCount(5 * GB), ByteCount(6 * GB)]),
        ("10%:30%:10%", [PeakShare(Fraction(k, 10)) for k in (1, 2, 3)]),
        ("0.1%:0.3%:0.1%", [PeakShare(Fraction(k, 1000)) for k in (1, 2, 3)]),
        ("50%,2GB", [PeakShare(Fraction(1, 2)), ByteCount(2 * GB)]),
    ],
)
def test_budgets(written: str, budgets: list[ByteCount | PeakShare]) -> None:
    assert list(parse_budgets(written)) == budgets


@pytest.mark.parametrize("written", ["", ",", "5GB,", "5GB:6GB", "1:2:3:4", "6GB:5GB:1GB", "1GB:2GB:0", "5GB:60%:1GB",
                                     "1:5GB:1", "a:b:c"])  # fmt: skip
def test_no_budgets(written: str) -> None:
    with pytest.raises(ConfigError):
        parse_budgets(written)


def test_all_is_everything_and_monet_is_the_whole_program() -> None:
    assert parse_variants("all") == tuple(name for name in VARIANTS if name not in MOVING)
    assert parse_variants("moving") == MOVING
    assert parse_variants("gist, monet,none,monet") == ("none", "monet", "gist")
    assert set(parse_variants("ablation,moving,baselines")) == set(VARIANTS)
    assert "pytorch" not in parse_variants("ablation")
    with pytest.raises(ConfigError, match="variants are none"):
        parse_variants("")
    assert parse_variant(" monet ") == "monet"
    for several in ("all", "ablation", "baselines"):
        with pytest.raises(ConfigError, match=f"'{several}' stands for several.* the whole program is called monet"):
            parse_variant(several)
    with pytest.raises(ConfigError, match=r"no variant is called 'mone' \(did you mean monet\?\); variants are none"):
        parse_variant("mone")


def test_every_variant_looks_different() -> None:
    looks = [look(variant) for variant in VARIANTS]
    assert len({found.colour for found in looks}) == len(looks)
    assert len({found.marker for found in looks}) == len(looks)


@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {"monet"}))  # which has the colour of the text
def test_colours_are_seen_on_light_and_on_dark_ground(variant: str) -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    own = luminance(look(variant).colour)
    for ground in ("#f5f6f8", "#1d2126"):  # the report's panels
        light, dark = sorted((own, luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 3


def solved(objective_s: float, bound_s: float, scope: str = "full") -> Solution:
    proof = None if scope == "none" else Proof(bound_s, scope)
    return Solution(Runs((), ()), objective_s, 0, "optimal", proof, 1.0, 9.0)


def test_a_gap_is_reached_at_its_first_second() -> None:
    trace = GapTrace()
    trace(None, None, None, 0.5)
    trace(10.0, 8.0, 0.2, 1.0)
    trace(10.0, 9.2, 0.08, 2.0)
    trace(10.0, 9.6, 0.04, 3.0)
    trace(10.0, 9.6, 0.04, 4.0)
    assert trace.reached_s(solved(10.0, 9.85)) == {10: 2.0, 5: 3.0, 2: 10.0}
    assert trace.reached_s(solved(10.0, 10.0, "none")) == {}


def test_the_last_of_several_solves_counts() -> None:
    trace = GapTrace()
    trace(10.0, 9.99, 0.001, 5.0)
    trace(10.0, 8.0, 0.2, 0.5)
    trace(10.0, 9.2, 0.08, 2.0)
    assert trace.reached_s(solved(10.0, 9.2)) == {10: 2.0}


def test_records_are_whole_and_of_their_key(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert load_record(path, "key") is None
    save_record(path, "key", {"a": [1, 2.5, None]})
    assert load_record(path, "key") == {"a": [1, 2.5, None]}
    assert load_record(path, "other key") is None
    text = path.read_text()
    for damaged in (text[: len(text) // 2], text.replace("2.5", "2.6"), "", "[]", "null", '{"key": "key"}'):
        path.write_text(damaged)
        assert load_record(path, "key") is None
    path.write_bytes(b"\xff\xfe")
    assert load_record(path, "key") is None


def test_keys_tell_inputs_apart(tmp_path: Path) -> None:
    source = Source.of_profile(write_profile(tmp_path / "a.json"))
    other = Source.of_profile(write_profile(tmp_path / "b.json", layers=4))
    step = source_key(source, Options(), {"cpu": "one"})
    assert step != source_key(other, Options(), {"cpu": "one"})
    # A profile was measured elsewhere, a model is measured here.
    assert step == source_key(source, Options(), {"cpu": "two"})
    model = Source.of_config("tiny.yaml")
    assert source_key(model, Options(), {"cpu": "one"}) != source_key(model, Options(), {"cpu": "two"})
    assert source_key(model, Options(), {}) != source_key(model, Options(exact=True), {})
    keys = {
        cell_key(step, options, cell)
        for options in (Options(), Options(gap=0.1), Options(window=4), Options(time_limit_s=1.0), Options(solver="X"))
        for cell in (Cell("monet", 1), Cell("monet", 2), Cell("none", 1))
    }
    assert len(keys) == 15


@pytest.mark.parametrize(
    ("budgets", "unit"),
    [
        ([5 * GB, 10 * GB], "GB"),
        ([5 * 2**30, 10 * 2**30], "GiB"),
        ([5 * 2**30 + 1], "GB"),
        ([700 * 2**20], "MiB"),
        ([700 * 10**6], "MB"),
        ([12], "B"),
    ],
)
def test_units(budgets: list[int], unit: str) -> None:
    assert unit_of(budgets).name == unit


def test_a_process_that_dies_costs_its_own_cell_only(tmp_path: Path) -> None:
    source = Source.of_profile(write_profile(tmp_path / "chain.json", layers=200))
    cells = {Cell("monet", 80_000_000): tmp_path, Cell("pytorch", 10**9): tmp_path, Cell("sqrt-n", 10**9): tmp_path}
    with Workers(source, Options(time_limit_s=60.0, gap=0.0), jobs=1, progress=False) as workers:
        workers.prepare()
        (first,) = workers._workers
        assert first.process.pid is not None
        # The first cell takes a minute; the system kills its process after a second.
        threading.Timer(1.0, os.kill, (first.process.pid, signal.SIGKILL)).start()
        outcomes = dict(workers.plan(cells))
    dead, *others = (outcomes[cell] for cell in cells)
    assert dead.status == "error"
    assert dead.message is not None and "SIGKILL, most likely for lack of memory" in dead.message
    assert [outcome.status for outcome in others] == ["heuristic", "heuristic"]
