"""Options that read an amount as people write it."""

from __future__ import annotations

from collections.abc import Callable
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
