"""How every command ends: 0 done, 1 infeasible or invalid, 2 wrong usage or configuration, 130 interrupted."""

from __future__ import annotations

import functools
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import click

from monet.base.amounts import format_bytes
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
            click.echo(f"monet: error: {_memory_used_up(error) or error}", err=True)
            raise click.exceptions.Exit(WRONG_USAGE if isinstance(error, ConfigError) else FAILED) from error
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:  # what nobody foresaw
            if verbose:
                traceback.print_exc()
            click.echo(f"monet: error: {_unforeseen(error)}", err=True)
            raise click.exceptions.Exit(FAILED) from error

    return reporting


def _memory_used_up(error: Exception) -> str | None:
    """What to say where ``error`` is that memory is used up, wherever it was asked for."""
    asked = re.search(r"can't allocate memory: you tried to allocate (\d+) bytes", str(error))
    if asked is None:
        return None
    return (
        f"the machine's memory is used up: {format_bytes(int(asked[1]))} were asked for at once. Try a smaller "
        "batch (--batch), or `monet fit --estimate`, which tells what fits and runs nothing"
    )


def _unforeseen(error: Exception) -> str:
    """A line; torch's own messages may have dozens, of C++ frames."""
    if (used_up := _memory_used_up(error)) is not None:
        return used_up
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{said} (monet did not foresee this: --verbose shows where it comes from; please report it)"


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
