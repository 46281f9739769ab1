"""One file that opens from disk: markup, style, scripts and the plan."""

from __future__ import annotations

import html
import re
from importlib.resources import files

from monet.lab.views.origins import UNKNOWN, Origins
from monet.lab.views.overview import overview
from monet.lab.views.page.columns import columns, embedded
from monet.plans.plan import Plan

SCRIPTS = (
    "plan_data.js", "viewport.js", "memory_chart.js", "arena_chart.js", "inspection.js", "tables.js", "main.js",
)  # fmt: skip
"""In the order in which they stand on the page."""


def script() -> str:
    """All scripts, in one scope of their own."""
    return '(() => {\n"use strict";\n' + "\n".join(_file(name) for name in SCRIPTS) + "})();\n"


def page(plan: Plan, origins: Origins = UNKNOWN) -> str:
    """The page as text: it asks for nothing else."""
    parts = {
        "title": html.escape(overview(plan).name),
        "style": _file("style.css"),
        "plan": embedded(columns(plan, origins)),
        "script": script(),
    }
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return (files("monet.lab.views.page") / name).read_text(encoding="utf-8")
