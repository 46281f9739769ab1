"""``python -m monet``."""

from __future__ import annotations

from monet.cli.main import main

main()
