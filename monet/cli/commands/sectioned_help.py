"""Help with the options in sections, and lists after them of the names that the options take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

OTHERS = "Other options"

Rows = Sequence[tuple[str, str]]
"""Names, each with a line that explains it."""


class SectionedOption(click.Option):
    """An option whose help stands under the heading ``section``."""

    def __init__(self, *declarations: Any, section: str, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has a heading for each section of options, in the order of their first options.

    ``lists`` makes what follows them, headings with rows. It is called where help is shown, so that a list may come
    from a registry that is slow to import.
    """

    def __init__(self, *arguments: Any, lists: Callable[[], Iterable[tuple[str, Rows]]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._lists = lists

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections and the lists."""
        sections: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                section = parameter.section if isinstance(parameter, SectionedOption) else None
                (others if section is None else sections.setdefault(section, [])).append(record)
        described: list[tuple[str, Rows]] = [*sections.items(), (OTHERS, others), *self._lists()]
        for heading, rows in described:
            with formatter.section(heading):
                formatter.write_dl(rows)
