"""Files that are there whole or not at all, and what is no file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from monet.base.files.atomic import write_text_atomically


def test_a_link_stays_one_and_leads_to_the_new_text(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to("target")
    write_text_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_text_atomically(pipe, "text")
    reader.join()
    assert found == ["text"] and pipe.is_fifo()


def test_a_device_stays_one() -> None:
    write_text_atomically(Path(os.devnull), "text")
    assert Path(os.devnull).is_char_device()


def test_what_cannot_be_replaced_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
