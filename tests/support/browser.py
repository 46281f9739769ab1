"""A browser without a window, where this machine has one: what a page draws, and what it says to a pointer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1400")
_LIMIT_S = 120


def browser() -> str:
    """The program; skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


def _run(folder: Path, *arguments: str) -> str:
    profile = folder / "browser-profile"
    command = [browser(), *_OPTIONS, f"--user-data-dir={profile}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def asked(page: str, script: str, folder: Path) -> Any:
    """What ``script``, the body of a function that runs at the end of the page, returns; an error of the page's own
    scripts fails the test."""
    watch = "<script>window.failures = []; onerror = (message) => { failures.push(message); };</script>"
    ask = (
        "<script>{ let answer; try { if (failures.length) throw failures.join(); answer = (() => {" + script + "})(); }"
        " catch (error) { answer = {failed: String(error)}; }"
        " const made = document.createElement('pre'); made.id = 'answer';"
        " made.textContent = JSON.stringify(answer); document.body.append(made); }</script>"
    )
    path = folder / "asked.html"
    path.write_text(page.replace("<head>", "<head>" + watch, 1).replace("</body>", ask + "</body>"), encoding="utf-8")
    text = _run(folder, "--dump-dom", path.as_uri())
    found = re.search(r'<pre id="answer">(.*?)</pre>', text, re.DOTALL)
    assert found is not None, text[-2000:]
    answer = json.loads(unescape(found.group(1)))
    assert not (isinstance(answer, dict) and "failed" in answer), answer
    return answer


def screenshot(page: str, folder: Path) -> Path:
    source, picture = folder / "page.html", folder / "page.png"
    source.write_text(page, encoding="utf-8")
    _run(folder, f"--screenshot={picture}", source.as_uri())
    return picture
