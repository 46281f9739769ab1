"""The directive ``command-help``: what ``--help`` prints for a command of ``monet``, taken from the command itself."""

from __future__ import annotations

from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from monet.cli.main import program

WIDTH = 90
"""Columns: as many as a page has room for."""


def help_of(name: str) -> str:
    """What ``monet NAME --help`` prints."""
    command = program.commands[name]
    return click.Context(
        command, info_name=f"monet {name}", terminal_width=WIDTH, max_content_width=WIDTH, **command.context_settings
    ).get_help()


class CommandHelp(SphinxDirective):
    """One argument: the command's name. A name that there is none of fails the build."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in program.commands:
            raise self.error(f"monet has no command {name!r}")
        text = help_of(name)
        return [nodes.literal_block(text, text, language="none")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
