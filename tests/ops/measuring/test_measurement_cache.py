"""Measurements on disk: read again as they were; those of another format are neither read nor deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from monet.base.measurement import Measurement, Request
from monet.ops.measuring import cache
from monet.ops.measuring.cache import ProfileCache

MEASURED = Measurement(0.1 + 0.2, (Request(64, 0, None, 0), Request(128, 1, 2, None), Request(8, 0, 2, None, True)), 2)


def test_what_is_kept_is_read_again_as_it_was(tmp_path: Path) -> None:
    with closing(ProfileCache(tmp_path / "profile.sqlite3")) as store:
        store.put([("torch 2|cpu|aten.sin.default()", MEASURED)])
    with closing(ProfileCache(tmp_path / "profile.sqlite3")) as store:
        assert store.get("torch 2|cpu|aten.sin.default()") == MEASURED
        assert store.get("torch 2|cpu|aten.cos.default()") is None


def test_another_format_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever goes back to an older monet finds what it had measured."""
    path = tmp_path / "profile.sqlite3"
    with closing(ProfileCache(path)) as store, closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO measurement VALUES ('key', 'of a monet that kept no format')")
        assert store.get("key") is None
    with closing(ProfileCache(path)) as store:
        store.put([("key", MEASURED)])
        monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
        assert store.get("key") is None
        store.put([("key", Measurement(1.0, (), 1))])
        monkeypatch.undo()
        assert store.get("key") == MEASURED
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM measurement").fetchone() == (3,)
    assert not caplog.records


@pytest.mark.parametrize("broken", ["", "[1]", '{"time_s": "1", "requests": [], "ticks": 1}'])
def test_what_cannot_be_read_is_measured_again(tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "profile.sqlite3"
    with closing(ProfileCache(path)) as store:
        store.put([("key", MEASURED)])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE measurement SET value = ?", (broken,))
        assert store.get("key") is None
        assert "cannot be read, and is made again" in caplog.text
        store.put([("key", MEASURED)])
        assert store.get("key") == MEASURED
