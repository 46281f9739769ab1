"""``python -m monet``."""

from __future__ import annotations

from monet.cli import main

main()
