"""Options that read an amount as people write it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from monet.errors import ConfigError

_Amount = TypeVar("_Amount")


def amount(parse: Callable[[str], _Amount]) -> Callable[[click.Context, click.Parameter, str | None], _Amount | None]:
    """An option's callback that reads an amount; None where the option was not given."""

    def callback(context: click.Context, parameter: click.Parameter, value: str | None) -> _Amount | None:
        if value is None:
            return None
        try:
            return parse(value)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def check_target(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before the work is done rather than after it."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint=option)
