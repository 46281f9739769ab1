"""The user's cache: the folder, the database of measurements in it, and compiled libraries.

monet runs those libraries, so whoever can write to the cache can make its user run anything. What monet makes there is
its user's alone (folders 0700, files 0600), and what is there already is used only where nobody else can write to it
and it belongs to the user that monet runs as. That goes for root too: a folder of another user's, say a home that
``sudo`` has kept, would give that user root's rights. ``MONET_CACHE`` then names another folder. The folders above the
cache are not looked at.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import shlex
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path

from monet.errors import CacheRefused

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where measured profiles and built libraries live; ``MONET_CACHE`` overrides it."""
    given = os.environ.get("MONET_CACHE")
    if given:
        return Path(given)
    import platformdirs  # a machine that plans are only run on may lack it

    return Path(platformdirs.user_cache_dir("monet"))


def library_folder() -> Path:
    """The cache's folder of compiled libraries, made if need be; where it cannot be, one of this process alone.

    Raises ``CacheRefused`` as ``private_folder``.
    """
    try:
        return private_folder(private_folder(cache_folder()) / "native")
    except OSError as error:
        cache_fails(error)
        return folder_of_process()


@cache
def folder_of_process() -> Path:
    """For libraries that the cache cannot have. It goes with the process, which may be one of ``multiprocessing``."""
    folder = Path(tempfile.mkdtemp(prefix="monet-"))
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=0)
    return folder


_said: set[Path] = set()


def cache_fails(error: Exception) -> None:
    """Set the database aside where it is damaged; else say that the cache cannot be read or written, once in a process:
    it is a convenience, and all goes on."""
    if set_aside(error):
        return
    folder = cache_folder()
    level = logging.DEBUG if folder in _said else logging.WARNING
    _said.add(folder)
    text = "the cache fails, and the next start finds less of this one: %s; set MONET_CACHE to a folder to write to"
    logger.log(level, text, error)


def private_folder(path: Path) -> Path:
    """``path``, which is made if need be, as are the folders above it, for the user alone whatever the umask.

    Raises ``CacheRefused`` where it is there and others can write in it, or it is somebody else's; ``OSError`` where
    it cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue  # another process was faster
        folder.chmod(0o700)  # the umask may take from the user, too
    _require_private(path, f"chmod go-w {shlex.quote(str(path))}")
    return path


def require_private_library(path: Path) -> None:
    """Raises ``CacheRefused`` where others can write to a compiled library in the cache, or it is somebody else's."""
    _require_private(path, f"rm {shlex.quote(str(path))}")  # it is built again, and may have been changed


def open_table(name: str, content: str, path: Path | None = None) -> sqlite3.Connection:
    """The database of the cache, or at ``path``, with a table ``name`` of a key and a column ``content`` in it. A file
    that is no database is set aside, which is said, and a new one begun; as is one that ``set_aside`` finds damaged.

    Raises ``CacheRefused`` for the folder or the file, and ``OSError`` or ``sqlite3.Error`` where it cannot be made.
    """
    path = path or _database()
    private_folder(path.parent)
    try:
        return _opened(path, name, content)
    except sqlite3.DatabaseError as error:
        if not set_aside(error, path):
            raise
        return _opened(path, name, content)


def set_aside(error: Exception, path: Path | None = None) -> bool:
    """Whether ``error`` came of a database that is damaged, and it could be given another name, which is said: the next
    one who opens it begins a new one. ``path``: the database, without the cache's.

    A process that had it open before finds damage where another one has set it aside: it is looked at.
    """
    damaged = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
    if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF not in damaged:
        return False
    path = path or _database()
    if _is_whole(path):
        return True
    aside = path.with_name(f"{path.name}.damaged")
    try:
        os.replace(path, aside)
        for journal in ("-journal", "-wal", "-shm"):  # of the damaged one
            path.with_name(path.name + journal).unlink(missing_ok=True)
    except OSError:  # its folder may only be read
        return False
    logger.warning("the cache %s is damaged (%s); it is %s now, and a new one is begun", path, error, aside.name)
    return True


def _database() -> Path:
    return cache_folder() / "profile.sqlite3"


def _is_whole(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=30)) as database:
            return bool(database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError:
        return False


def _opened(path: Path, name: str, content: str) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))  # SQLite takes an empty file for a new database
        path.chmod(0o600)
    _require_private(path, f"chmod go-w {shlex.quote(str(path))}")
    database = sqlite3.connect(path, timeout=30)
    try:
        with database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} (key TEXT PRIMARY KEY, {content} NOT NULL)")
    except sqlite3.Error:
        database.close()
        raise
    return database


def read_value(table: str, key: str) -> str | None:
    """The text that was last written under ``key``; None if there is none. Raises as ``open_table``."""
    with closing(open_table(table, "value TEXT")) as database:
        row = database.execute(f"SELECT value FROM {table} WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def write_value(table: str, key: str, value: str) -> None:
    """Keep a text under ``key``, in place of an earlier one. Raises as ``open_table``."""
    with closing(open_table(table, "value TEXT")) as database, database:
        database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))


def _require_private(path: Path, mend: str) -> None:
    """``mend``: the command that makes it private where only its mode is wrong."""
    found, user = path.stat(), os.geteuid()
    # A link is its owner's to point elsewhere; root can do that with any.
    if found.st_uid != user or path.lstat().st_uid not in (user, 0):
        owner = found.st_uid if found.st_uid != user else path.lstat().st_uid
        raise CacheRefused(
            f"{path} belongs to {_name(owner)}, and monet runs as {_name(user)}: monet runs compiled libraries in its "
            "cache, which nobody else may change. Set MONET_CACHE to a folder of your own"
        )
    others = {stat.S_IWOTH: "everyone", stat.S_IWGRP: "its group"}
    writers = [who for bit, who in others.items() if found.st_mode & bit]
    if writers:
        for_all = found.st_mode & stat.S_ISVTX  # /tmp, say, which must stay as it is
        raise CacheRefused(
            f"{path} can be written by {writers[0]} (mode {stat.S_IMODE(found.st_mode):04o}): monet runs compiled "
            f"libraries in its cache, which nobody else may change. {'Set' if for_all else f'Run `{mend}`, or set'} "
            "MONET_CACHE to a folder of your own"
        )


def _name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    except KeyError:
        return f"user {user}"
