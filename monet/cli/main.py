"""The command line: one program ``monet``; ``monet-plan`` is its ``plan`` and ``monet-sweep`` its ``sweep``."""

from __future__ import annotations

import os
import signal
import sys
import threading

import click

from monet.cli.commands.compare import compare
from monet.cli.commands.fit import fit
from monet.cli.commands.layout import layout
from monet.cli.commands.operators import operators
from monet.cli.commands.order import order
from monet.cli.commands.plan import plan
from monet.cli.commands.profile import profile
from monet.cli.commands.run import run
from monet.cli.commands.show import show
from monet.cli.commands.sweep import sweep
from monet.cli.commands.trace import trace

AGAIN_S = 0.02
"""After which a Ctrl-C that was dropped comes again."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="monet-planner", prog_name="monet")
def program() -> None:
    """Plan what a PyTorch training step keeps, recomputes, and how, under a number of bytes.

    Exit status: 0 done, 1 infeasible or invalid, 2 wrong usage or configuration, 130 interrupted.
    """


program.add_command(plan)
program.add_command(profile)
program.add_command(fit)
program.add_command(sweep)
program.add_command(order)
program.add_command(layout)
program.add_command(show)
program.add_command(compare)
program.add_command(trace)
program.add_command(run)
program.add_command(operators)


def _open_streams() -> None:
    """Whoever began the process may have closed them: all write to them, and files that are opened would take their
    numbers, and get what libraries print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, for as long as the process lives.
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115


def _keep_interrupts() -> None:
    """Have Ctrl-C come again where Python drops it: in a weak reference's callback, or a destructor, of which there are
    thousands when a trace is freed."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # From another thread, a moment later: here it would be dropped again.
            again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook


def _prepare_process() -> None:
    _open_streams()
    _keep_interrupts()


def main() -> None:
    """Entry point of ``monet``."""
    _prepare_process()
    program(prog_name="monet")


def plan_main() -> None:
    """Entry point of ``monet-plan``."""
    _prepare_process()
    plan(prog_name="monet-plan")


def sweep_main() -> None:
    """Entry point of ``monet-sweep``."""
    _prepare_process()
    sweep(prog_name="monet-sweep")
