"""``monet operators``: the table of operators."""

from __future__ import annotations

import click

from monet.cli.commands.exit_status import reports_errors


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@reports_errors
def operators(quiet: bool) -> None:
    """Print what monet offers for each operator, as the Markdown of docs/operators.md."""
    from monet.cli.commands.operator_table import table

    click.echo(table(progress=not quiet), nl=False)
