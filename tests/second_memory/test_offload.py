"""What is asked of a second memory, which folder it gets, and what is remembered of its disk."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from moved_steps import disk_or_skip

import monet
from monet.base.files.cache import open_table
from monet.cli.main import program
from monet.errors import ConfigError, ExecutionError
from monet.planner.problem import MODES
from monet.planner.schedules import MOVING
from monet.step.second_memory import bandwidth as rates
from monet.step.second_memory import folder as folders
from monet.step.second_memory import trials
from monet.step.second_memory.bandwidth import Bandwidth, bandwidth
from monet.step.second_memory.folder import check_room, device_of, find_folder
from monet.step.second_memory.offload import Offload, parse_offload, variant_with

GB = 10**9
IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return disk_or_skip(tmp_path)


@pytest.fixture
def in_memory() -> Path:
    if not IN_MEMORY.is_dir():
        pytest.skip(f"no {IN_MEMORY}")
    return IN_MEMORY


# Texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("disk", Offload(True)),
        ("disk:/scratch", Offload(True, Path("/scratch"))),
        ("disk:relative/folder", Offload(True, Path("relative/folder"))),
        ("disk:/a:b", Offload(True, Path("/a:b"))),
        ("disk:/scratch,limit=20GB", Offload(True, Path("/scratch"), limit_bytes=20 * GB)),
        ("disk,limit=1GiB", Offload(True, limit_bytes=1 << 30)),
        ("disk,limit=1MiB", Offload(True, limit_bytes=1 << 20)),
        ("disk , limit=5MB , mode=synchronous", Offload(True, limit_bytes=5_000_000, mode="synchronous")),
        ("disk,write=800MB/s", Offload(True, write_rate=8e8)),
        ("disk,write=800MB/s,read=2GB / s", Offload(True, write_rate=8e8, read_rate=2e9)),
        ("disk,bandwidth=1GB/s", Offload(True, write_rate=1e9, read_rate=1e9)),
        ("disk,bandwidth=1GB/s,read=3GB/s", Offload(True, write_rate=1e9, read_rate=3e9)),
        ("host", Offload(False, host=True)),
        ("host,limit=20GB,mode=synchronous", Offload(False, limit_bytes=20 * GB, mode="synchronous", host=True)),
        ("host,read=20GB/s", Offload(False, read_rate=2e10, host=True)),
        ("bandwidth=12GB/s", Offload(False, write_rate=12e9, read_rate=12e9)),
        ("bandwidth=12GB/s,write=1.5GB/s", Offload(False, write_rate=1.5e9, read_rate=12e9)),
        ("bandwidth=1GiB/s,mode=static", Offload(False, write_rate=2.0**30, read_rate=2.0**30, mode="static")),
        ("bandwidth=1GB/s,limit=7MB", Offload(False, write_rate=1e9, read_rate=1e9, limit_bytes=7_000_000)),
    ],
)
def test_accepted(text: str, expected: Offload) -> None:
    assert parse_offload(text) == expected
    assert parse_offload(expected) is expected


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_offload("disk:~/scratch").folder == Path("/home/someone/scratch")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write disk"),
        ("Disk", "write disk"),
        ("ssd:/scratch", "write disk"),
        ("disk=/scratch", "write disk"),
        ("/scratch", "write disk"),
        ("disk:", "names no folder"),
        ("disk:,limit=1GB", "names no folder"),
        ("disk,", "is not known"),
        ("disk,size=1GB", "'size=1GB' is not known"),
        ("disk,limit", "'limit' is not known"),
        ("disk,limit,mode=synchronous", "'limit' is not known"),
        ("disk,limit=", "''"),
        ("disk,limit=much", "much"),
        ("disk,limit=-1", "-1"),
        ("disk:/scratch,limit=0", "'disk:/scratch,limit=0': nothing would be moved"),
        ("bandwidth=1GB/s,limit=1048575", "under 1,048,576 bytes (1 MiB)"),
        ("disk,mode=fast", "mode is one of asynchronous, synchronous, static, not 'fast'"),
        ("disk,mode=static", "which a disk is not"),
        ("host,mode=static", "main memory is not for PyTorch's on a GPU"),
        ("host:/scratch", "write disk"),
        ("disk,write=1GB", "is no rate; write bytes a second"),
        ("disk,write=/s", "''"),
        ("disk,read=0GB/s", "moves nothing"),
        ("bandwidth=", "is no rate"),
        ("bandwidth=12", "is no rate"),
        ("bandwidth=fast/s", "fast"),
        ("write=1GB/s,read=1GB/s", "write disk"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_offload(text)
    assert said in str(raised.value)


def test_every_mode_has_a_text() -> None:
    assert [parse_offload(f"bandwidth=1GB/s,mode={mode}").mode for mode in MODES] == list(MODES)


def test_given_rates_come_before_measured_ones() -> None:
    second = parse_offload("disk,write=1GB/s,limit=9MB").at(5e9, 6e9, 1e-12)
    assert (second.write_rate, second.read_rate, second.slowdown_s, second.limit_bytes) == (1e9, 6e9, 1e-12, 9_000_000)
    assert parse_offload("bandwidth=2GB/s").assumed().read_rate == 2e9
    for text in ("disk", "disk,write=1GB/s", "disk,read=1GB/s"):
        with pytest.raises(ConfigError, match="a disk's rates are measured"):
            parse_offload(text).assumed()


def test_variants_that_move_need_a_second_memory() -> None:
    for variant in MOVING:
        with pytest.raises(ConfigError, match=re.escape(f"the variant {variant} moves tensors to a second memory")):
            variant_with(None, variant)
    with pytest.raises(ConfigError, match="which a disk is not"):
        variant_with(parse_offload("disk"), "static")
    assert variant_with(parse_offload("bandwidth=1GB/s"), "static") == "static"
    assert variant_with(None, "monet") == "monet"
    assert variant_with(parse_offload("disk"), "monet") in MOVING


# Folders


def test_a_folder_that_is_named_is_taken(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONET_OFFLOAD", "/nowhere")
    monkeypatch.chdir(disk)
    assert find_folder(disk) == find_folder(Path(".")) == disk.resolve()
    assert not list(disk.iterdir())


def test_a_folder_that_will_not_do(disk: Path, in_memory: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        find_folder(disk / "nowhere")
    (disk / "file").write_text("")
    with pytest.raises(ConfigError, match="file is not a folder"):
        find_folder(disk / "file")
    with pytest.raises(ConfigError, match="main memory"):
        find_folder(in_memory)


def test_the_environment_names_a_folder(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk / "named").mkdir()
    monkeypatch.setenv("MONET_OFFLOAD", str(disk / "named"))
    assert find_folder(None) == (disk / "named").resolve()
    monkeypatch.setenv("MONET_OFFLOAD", str(disk / "gone"))
    with pytest.raises(ConfigError, match="gone is not a folder"):
        find_folder(None)
    monkeypatch.setenv("MONET_OFFLOAD", "")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(disk))
    assert find_folder(None).is_dir()


@pytest.fixture
def candidates(disk: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Three folders of this test's: for temporary files, of the cache, and the working directory."""
    found = {name: disk / name for name in ("temporary", "cache", "working")}
    for folder in found.values():
        folder.mkdir()
    monkeypatch.delenv("MONET_OFFLOAD", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(found["temporary"]))
    monkeypatch.setattr(folders, "cache_folder", lambda: found["cache"])
    monkeypatch.chdir(found["working"])
    return {name: folder.resolve() for name, folder in found.items()}


def with_free(monkeypatch: pytest.MonkeyPatch, free: dict[Path, int]) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[Path(path)]))


def test_the_folder_with_most_room_is_chosen(candidates: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen in candidates.values():
        with_free(monkeypatch, {folder: 10 if folder == chosen else 5 for folder in candidates.values()})
        assert find_folder(None) == chosen


def test_folders_that_will_not_do_are_passed_over(
    candidates: dict[str, Path], in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(in_memory))
    candidates["cache"].rmdir()
    assert find_folder(None) == candidates["working"]
    monkeypatch.setattr(Path, "cwd", lambda: in_memory)
    with pytest.raises(ConfigError, match=r"main memory.*cache is not a folder.*Name a folder on a disk: disk:FOLDER"):
        find_folder(None)


def test_room(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, {disk: 1000})
    check_room(disk, 1000)
    with pytest.raises(ConfigError, match=r"needs 1,500 bytes in .*, 500 more than its disk has left; .*limit=BYTES"):
        check_room(disk, 1500)


def test_devices_have_names(disk: Path, in_memory: Path) -> None:
    (disk / "inner").mkdir()
    assert device_of(disk) == device_of(disk / "inner")
    assert device_of(in_memory).split()[1] == "tmpfs"
    assert device_of(disk) != device_of(in_memory)


# Bandwidth


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Path]]:
    """Folders that were measured, with a cache of this test's."""
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "cache"))
    folders_measured: list[Path] = []

    def measure(folder: Path) -> Bandwidth:
        folders_measured.append(folder)
        return Bandwidth(1e9 * len(folders_measured), 2e9, 1e-11, "2026-01-02T03:04:05+00:00")

    monkeypatch.setattr(rates, "measure", measure)
    yield folders_measured


def test_a_disk_is_measured_once(measured: list[Path], tmp_path: Path) -> None:
    first = bandwidth(tmp_path)
    (tmp_path / "other").mkdir()
    assert bandwidth(tmp_path) == first == bandwidth(tmp_path / "other")
    assert measured == [tmp_path]


def test_another_disk_and_other_threads_are_measured(
    measured: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bandwidth(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(rates, "device_of", lambda _: "8:1 ext4 /dev/sda1")
        assert bandwidth(tmp_path).write_rate == 2e9
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 99)
        assert bandwidth(tmp_path).write_rate == 3e9
    assert bandwidth(tmp_path).write_rate == 1e9


@pytest.mark.parametrize("text", ["disk,limit=1GB,limit=2GB", "bandwidth=1GB/s,bandwidth=2GB/s"])
def test_what_is_said_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="more than once"):
        parse_offload(text)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="offload is 5"):
        parse_offload(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offload", "message"),
    [
        ("disk:/missing/folder", "not a folder"),
        ("disk:/dev/shm", "main memory"),
        ("disk:{here},limit=900TB", "limit of 900.000 TB is more than"),
    ],
)
def test_a_disk_that_will_not_do_is_refused_before_anything_is_measured(
    offload: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    for name in (
        "monet.api.how.prepare",
        "monet.api.functions.prepare_whole",
        "monet.lab.experiments.configured.prepare",
    ):
        monkeypatch.setattr(name, measured)
    asked = offload.format(here=tmp_path)
    model, x = torch.nn.Linear(2, 2), torch.randn(3, 2)
    with pytest.raises(ConfigError, match=message):
        monet.plan(model, x, budget="1MB", offload=asked)
    with pytest.raises(ConfigError, match=message):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        monet.optimize(model, x, x, loss_fn=torch.nn.MSELoss(), optimizer=optimizer, budget="1MB", offload=asked)
    for command in (("plan", "--budget", "50%"), ("sweep", "--budgets", "50%", "--variants", "monet+move")):
        target = ("--output", str(tmp_path / "out"))
        result = CliRunner().invoke(program, [*command, "tiny.yaml", "--offload", asked, *target, "--quiet"])
        assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_without_the_cache_it_is_measured_anew(measured: list[Path], tmp_path: Path) -> None:
    bandwidth(tmp_path)
    assert bandwidth(tmp_path, cache=False).write_rate == 2e9
    assert bandwidth(tmp_path).write_rate == 1e9


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"write_rate": 1}', "not json"])
def test_what_the_cache_cannot_tell_is_measured(
    content: str, measured: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bandwidth(tmp_path)
    with closing(open_table("bandwidth", "value TEXT")) as database, database:
        database.execute("UPDATE bandwidth SET value = ?", (content,))
    with caplog.at_level(logging.WARNING):
        assert bandwidth(tmp_path).write_rate == 2e9
    assert "cannot be read" in caplog.text
    assert bandwidth(tmp_path).write_rate == 2e9


def test_a_cache_that_is_refused_is_said(
    measured: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert bandwidth(tmp_path).write_rate == 1e9
    assert "can be written by everyone" in caplog.text


def test_a_measurement(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, of little."""
    monkeypatch.setattr(trials, "PIECE", 1 << 20)
    monkeypatch.setattr(trials, "PIECES", 2)
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    monkeypatch.setattr(trials, "BESIDE", 64)

    def steady(trial: trials.Trial, *, write: bool) -> list[float]:
        trial.wait(trial.issue(0, write=write))
        return [5e8 if write else 7e8] * 20

    monkeypatch.setattr(rates, "_rates", steady)
    found = rates.measure(disk)
    assert (found.write_rate, found.read_rate) == (5e8, 7e8)
    assert found.slowdown_s >= 0 and found.measured
    assert not list(disk.iterdir())


def test_rates_are_those_of_pieces(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of which each look is a second later: a piece a second."""
    now = iter(range(10**6))
    monkeypatch.setattr(trials, "PIECE", 1 << 20)
    monkeypatch.setattr(trials, "PIECES", 2)
    monkeypatch.setattr(rates, "SECONDS", 10.0)
    trial = trials.DiskTrial(disk)
    for write in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr("monet.step.second_memory.bandwidth.time.perf_counter", lambda: float(next(now)))
            found = rates._rates(trial, write=write)
        assert len(found) >= 4 and all(rate == (1 << 20) / 2 for rate in found)  # two looks a piece
    trial.close()


def test_the_slow_end_counts() -> None:
    assert rates._low([float(n) for n in range(100, 0, -1)]) == 11.0
    assert rates._low([3.0]) == 3.0


def test_a_folder_in_main_memory_is_not_measured(in_memory: Path) -> None:
    with pytest.raises(ExecutionError, match="main memory"):
        rates.measure(in_memory)
