"""The cache is its user's alone: made so, and refused where it is not."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from monet.base.files.cache import (
    cache_fails,
    folder_of_process,
    library_folder,
    open_table,
    private_folder,
    read_value,
    write_value,
)  # fmt: skip
from monet.base.measurement import Measurement
from monet.cli.commands.plan import plan
from monet.errors import CacheRefused, ConfigError
from monet.native import compiling
from monet.native.compiling import shared_library
from monet.ops.measuring.cache import ProfileCache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is not there yet, nor is the one above it."""
    folder = tmp_path / "above" / "cache"
    monkeypatch.setenv("MONET_CACHE", str(folder))
    return folder


@contextmanager
def umask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_database() -> None:
    open_table("test", "value TEXT").close()


def mend(refused: CacheRefused) -> None:
    """Runs the command that the error tells."""
    _, command, _ = str(refused).split("`")
    subprocess.run(shlex.split(command), check=True)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to compile, by a compiler that takes no time and writes what everyone may write."""
    compiler = tmp_path / "c++"
    find_output = 'for last; do test "$before" = -o && break; before=$last; done'
    compiler.write_text(f'#!/bin/sh\n{find_output}\n: > "$last"; chmod 666 "$last"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    source = tmp_path / "unit.cpp"
    source.write_text("")
    return source


@pytest.mark.parametrize("bits", [0o000, 0o002, 0o022, 0o077], ids=oct)
def test_what_is_made_is_the_users_alone(cache: Path, bits: int, source: Path) -> None:
    with umask(bits):
        open_database()
        target = shared_library(source)
        assert target is not None and target.parent == library_folder()
        for folder in (cache.parent, cache, cache / "native"):
            assert mode(folder) == 0o700, folder
        assert (mode(cache / "profile.sqlite3"), mode(target)) == (0o600, 0o700)
        with closing(open_table("test", "value TEXT")) as database, database:
            database.execute("INSERT INTO test VALUES ('key', 'value')")
        assert shared_library(source) == target
    assert {mode(path) & 0o077 for path in cache.rglob("*")} == {0}


def test_the_user_may_write_what_is_made(cache: Path) -> None:
    """Under an umask that takes that away, too."""
    with umask(0o377):
        open_database()
        library_folder()
    assert [mode(cache.parent), mode(cache), mode(cache / "native")] == [0o700] * 3
    assert mode(cache / "profile.sqlite3") == 0o600


def test_what_others_may_only_read_is_used(cache: Path, source: Path) -> None:
    open_database()
    target = shared_library(source)
    assert target is not None
    for path in (cache, cache / "native", target):
        path.chmod(0o755)
    (cache / "profile.sqlite3").chmod(0o644)
    open_database()
    assert shared_library(source) == target


@pytest.mark.parametrize(("bits", "who"), [(0o775, "its group"), (0o707, "everyone"), (0o777, "everyone")])
def test_a_folder_that_others_can_write_is_refused(cache: Path, source: Path, bits: int, who: str) -> None:
    cache.mkdir(parents=True)
    cache.chmod(bits)
    message = (
        f"^{cache} can be written by {who} \\(mode 0{bits:o}\\): monet runs compiled libraries in its cache, which "
        f"nobody else may change. Run `chmod go-w {cache}`, or set MONET_CACHE to a folder of your own$"
    )
    for use in (open_database, library_folder, partial(shared_library, source)):
        with pytest.raises(CacheRefused, match=message) as refused:
            use()
    assert not list(cache.iterdir())
    mend(refused.value)
    open_database()
    assert shared_library(source) is not None


def test_a_folder_of_libraries_that_others_can_write_is_refused(cache: Path, source: Path) -> None:
    library_folder().chmod(0o770)
    open_database()  # there is nothing to run
    with pytest.raises(CacheRefused, match=f"^{cache}/native can be written by its group"):
        shared_library(source)


def test_a_database_that_others_can_write_is_refused(cache: Path) -> None:
    open_database()
    (cache / "profile.sqlite3").chmod(0o666)
    with pytest.raises(CacheRefused, match=r"profile\.sqlite3 can be written by everyone") as refused:
        open_database()
    mend(refused.value)
    open_database()


def test_a_link_to_what_others_can_write_is_refused(cache: Path, tmp_path: Path, source: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "native").mkdir(mode=0o700)
    (shared / "file").touch()
    private_folder(cache)
    (cache / "profile.sqlite3").symlink_to(shared / "file")
    (cache / "native").symlink_to(shared / "native")
    open_database()
    assert shared_library(source) is not None  # links to what is the user's alone are the user's choice
    (shared / "file").chmod(0o606)
    with pytest.raises(CacheRefused, match="can be written by everyone"):
        open_database()
    (shared / "native").chmod(0o722)
    with pytest.raises(CacheRefused, match="can be written by everyone"):
        shared_library(source)


def test_a_library_that_others_can_write_is_refused(cache: Path, source: Path) -> None:
    target = shared_library(source)
    assert target is not None
    target.chmod(0o720)
    with pytest.raises(CacheRefused, match=f"Run `rm {target}`, or set MONET_CACHE") as refused:
        shared_library(source)
    mend(refused.value)
    assert shared_library(source) == target


def test_what_is_somebody_elses_is_refused(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user, root say, finds it."""
    open_database()
    library_folder()
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000)
    message = f"{cache} belongs to .*, and monet runs as user 4000000: .* Set MONET_CACHE to a folder of your own$"
    for use in (open_database, library_folder, partial(shared_library, source)):
        with pytest.raises(CacheRefused, match=message):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["profile.sqlite3", "native", "library"])
def test_a_part_of_the_cache_that_is_somebody_elses_is_refused(cache: Path, source: Path, name: str) -> None:
    open_database()
    target = shared_library(source)
    assert target is not None
    os.chown(target if name == "library" else cache / name, 4_000_000, -1)
    with pytest.raises(CacheRefused, match="belongs to user 4000000, and monet runs as root"):
        open_database() if name == "profile.sqlite3" else shared_library(source)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_somebody_elses_link_to_the_users_own_folder_is_refused(cache: Path) -> None:
    mine = private_folder(cache.parent / "mine")
    cache.symlink_to(mine)
    open_database()
    os.chown(cache, 4_000_000, -1, follow_symlinks=False)
    with pytest.raises(CacheRefused, match="belongs to user 4000000"):
        open_database()


def test_a_folder_for_all_is_not_to_be_changed(cache: Path) -> None:
    private_folder(cache).chmod(0o1777)
    with pytest.raises(CacheRefused, match=r"mode 1777.* may change\. Set MONET_CACHE to a folder of your own$"):
        open_database()


@pytest.mark.parametrize("folder", ["{file}/below a file", "{file}", "/dev/null"])
def test_a_folder_that_cannot_be_made_is_no_refusal(
    folder: str, cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Libraries are built for the process, and nothing is kept, which is said once."""
    folder_of_process.cache_clear()
    folder = folder.format(file=source)
    monkeypatch.setenv("MONET_CACHE", folder)
    target = shared_library(source)
    assert target is not None and mode(target.parent) == 0o700 and shared_library(source) == target
    with pytest.raises(OSError, match=folder):
        open_database()
    store = ProfileCache()
    store.put([("key", Measurement(1.0, (), 1))])
    assert store.get("key") is None
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "the cache fails, and the next start finds less of this one" in said and folder in said
    folder_of_process.cache_clear()


FORKED = """
import multiprocessing
from monet.base.files.cache import folder_of_process

def work():
    print(folder_of_process(), flush=True)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
    work()
"""


def test_a_folder_of_a_process_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    said = subprocess.run([sys.executable, tmp_path / "forked.py"], check=True, capture_output=True, text=True).stdout
    folders = said.split()
    assert len(folders) == 4 and not any(Path(folder).exists() for folder in folders)


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), OSError(errno.EROFS, "Read-only")])
def test_a_library_that_the_cache_cannot_have_is_built_for_the_process(
    cache: Path, source: Path, error: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder is there, but its disk is full, may only be read, or knows no locks."""
    folder_of_process.cache_clear()
    locked = compiling._locked

    def lock(path: Path) -> AbstractContextManager[int]:
        if path.is_relative_to(cache):
            raise error
        return locked(path)

    monkeypatch.setattr(compiling, "_locked", lock)
    target = shared_library(source)
    assert target is not None and target.exists() and not target.is_relative_to(cache)
    assert f"the cache fails, and the next start finds less of this one: {error}" in caplog.text
    folder_of_process.cache_clear()


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_database_is_set_aside(cache: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    open_database()
    path = cache / "profile.sqlite3"
    path.write_bytes(damage)
    for _ in range(2):
        with closing(open_table("test", "value TEXT")) as database, database:
            database.execute("INSERT OR REPLACE INTO test VALUES ('key', 'value')")
    assert (cache / "profile.sqlite3.damaged").read_bytes() == damage
    assert [record.message for record in caplog.records if "is damaged" in record.message][1:] == []
    assert mode(path) == 0o600


def test_a_database_that_is_damaged_inside_is_set_aside(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its head is whole, so that it can be opened."""
    store = ProfileCache()
    store.put([(f"key {k}", Measurement(1.0, (), 1)) for k in range(2000)])
    write_value("test", "key", "value")
    store.close()
    path = cache / "profile.sqlite3"
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    before = ProfileCache()  # of a process that has it open when another one sets it aside
    store = ProfileCache()
    assert [store.get(f"key {k}") for k in range(2000)].count(None) > 1000
    store.put([("key 5", Measurement(2.0, (), 1))])
    assert read_value("test", "key") is None
    write_value("test", "key", "other")
    assert read_value("test", "key") == "other"
    for k in range(2000):
        before.get(f"key {k}")
    assert before.get("key 5") == store.get("key 5") == Measurement(2.0, (), 1)
    assert (cache / "profile.sqlite3.damaged").exists()
    (said,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "is damaged" in said and "profile.sqlite3.damaged now" in said


def test_damage_on_a_disk_that_may_only_be_read_costs_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    write_value("test", "key", "value")
    path = cache / "profile.sqlite3"
    path.write_bytes(b"no database at all" * 100)
    monkeypatch.setattr("monet.base.files.cache.os.replace", refuse)
    store = ProfileCache()
    store.put([("key", Measurement(1.0, (), 1))])
    assert store.get("key") is None and "the cache fails" in caplog.text


def test_a_cache_that_fails_costs_nothing(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As on a full disk, or where its pages are damaged."""
    measured = Measurement(1.0, (), 1)
    with closing(ProfileCache()) as store:
        store.put([("key", measured)])
        assert store._database is not None
        store._database.execute("PRAGMA max_page_count = 1")
        store.put([(f"key {k}", measured) for k in range(1000)])
        assert "the cache" in caplog.text and "full" in caplog.text
        store.put([("another", measured)])
        assert store.get("key") is None
    cache_fails(OSError("full, too"))
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    with closing(ProfileCache()) as store:
        assert store.get("key") == measured


@pytest.mark.parametrize("content", [b"", b"x" * 7])
def test_a_library_that_was_cut_short_is_built_again(
    cache: Path, source: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """To load it would end the process, by SIGBUS."""
    source.write_text("the compiler copies this")
    find = 'for last do :; done; for file do case "$file" in *.cpp|*.o) break;; esac; done'
    Path(os.environ["CXX"]).write_text(f'#!/bin/sh\n{find}\ncat "$file" > "$last"\n')
    target = shared_library(source)
    assert target is not None and target.read_text() == source.read_text()
    target.write_bytes(content)
    assert shared_library(source) == target and target.read_text() == source.read_text()
    assert f"{target} is damaged, and is built again" in caplog.text


def test_what_a_killed_build_has_left_is_removed(cache: Path, source: Path) -> None:
    target = shared_library(source)
    assert target is not None
    target.unlink()
    left = target.parent / f"{target.stem.rpartition('-')[0]}.build"
    (left / "deeper").mkdir(parents=True)
    other, at_work = target.parent / "other-123.build", target.parent / "busy-123.build"
    (other / "deeper").mkdir(parents=True)  # of another source, or of this one before it changed
    at_work.mkdir()
    with compiling._locked(target.parent / "busy-123.lock"):
        assert shared_library(source) == target and not left.exists() and not other.exists()
    assert at_work.exists()


def test_two_first_starts_compile_once(cache: Path, source: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    compiler = Path(os.environ["CXX"])
    compiler.write_text(compiler.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\necho called >> {calls}\nsleep 0.2\n"))
    command = "import sys, pathlib; from monet.native.compiling import shared_library; "
    command += "print(shared_library(pathlib.Path(sys.argv[1])))"
    started = [
        subprocess.Popen([sys.executable, "-c", command, str(source)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate()[0] for process in started]
    assert told[0] == told[1] and ".so" in told[0]
    assert calls.read_text().count("called") == 2  # once to compile, once to link


def test_the_command_ends_with_the_sentence(cache: Path) -> None:
    private_folder(cache).chmod(0o777)
    done = CliRunner().invoke(plan, ["tiny.yaml", "--budget", "80%", "--output", str(cache.parent / "plan.json")])
    assert done.exit_code == 1 and not issubclass(CacheRefused, ConfigError)
    assert f"monet: error: {cache} can be written by everyone (mode 0777)" in done.stderr
    assert "Traceback" not in done.output and not list(cache.iterdir())


def test_without_a_compiler_no_library_is_looked_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_folder(cache).chmod(0o777)
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert shared_library(Path("unit.cpp")) is None
