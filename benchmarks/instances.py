"""Where published instances are, which are not part of this project."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "instances"


def instances_option(kind: str) -> Callable[[Any], Any]:
    """``--instances`` of a command: a folder that has one of this name."""
    return click.option(
        "--instances",
        type=click.Path(path_type=Path),
        default=Path(os.environ.get("MONET_INSTANCES", _BESIDE)),
        help=f"Folder that has {kind}/; default: $MONET_INSTANCES, or beside this project.",
    )
