"""``monet operators``: the table of operators."""

from __future__ import annotations

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def operators() -> None:
    """Print what monet offers for each operator, as the Markdown of docs/operators.md."""
    from monet.operator_table import table

    click.echo(table(), nl=False)
