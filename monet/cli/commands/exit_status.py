"""How every command ends: 0 done, 1 infeasible or invalid, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import click

from monet.base.silence import silence
from monet.errors import ConfigError, MonetError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130

_Params = ParamSpec("_Params")


def reports_errors(command: Callable[_Params, None], *, is_all_ours: bool = True) -> Callable[_Params, None]:
    """A command whose errors become one message on stderr and an exit status.

    Adds ``-v/--verbose`` and ``--quiet``: how much is logged to stderr, and, with ``-v``, whether
    an error's traceback is shown. The command itself gets ``quiet``. ``is_all_ours``: nothing of the user's runs, whose
    own log and warnings ``--quiet`` would have to leave alone.
    """

    @click.option("--quiet", is_flag=True, help="No progress, no log, no warnings: results and errors alone.")
    @click.option("-v", "--verbose", is_flag=True, help="Log more, and show the traceback of an error.")
    @functools.wraps(command)
    def reporting(*args: _Params.args, **kwargs: _Params.kwargs) -> None:
        verbose = kwargs.pop("verbose")
        quiet = bool(kwargs["quiet"]) and not verbose
        level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.INFO
        try:
            with _log_on_stderr(level), silence(quiet and is_all_ours):
                command(*args, **kwargs)
        except KeyboardInterrupt:
            click.echo("monet: interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except (MonetError, OSError) as error:
            if verbose:
                traceback.print_exc()
            click.echo(f"monet: error: {error}", err=True)
            raise click.exceptions.Exit(WRONG_USAGE if isinstance(error, ConfigError) else FAILED) from error

    return reporting


@contextmanager
def _log_on_stderr(level: int) -> Iterator[None]:
    """Show the log of monet's own modules, as an application does; the library sets no levels."""
    logger = logging.getLogger("monet")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("monet: %(message)s"))
    previous = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(previous)
        logger.removeHandler(handler)
