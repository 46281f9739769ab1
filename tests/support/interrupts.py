"""Ctrl-C in processes that tests start."""

from __future__ import annotations

import signal


def default_interrupts() -> None:
    """A shell that starts the tests in the background has Ctrl-C ignored, and children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
