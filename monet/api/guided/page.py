"""A page that draws the arena of a kind of steps: each request a rectangle, its life by its addresses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jinja2
import numpy as np

from monet.api.guided.placement import Placement
from monet.api.guided.report import GuidedReport
from monet.base.amounts import format_bytes

WIDTH, HEIGHT = 1000, 460
"""Of the drawing, in its own units."""


@dataclass(frozen=True, slots=True)
class _Box:
    """``x`` to ``x`` + ``width`` in time, ``y`` to ``y`` + ``height`` in addresses; ``hue`` tells neighbours apart."""

    x: float
    y: float
    width: float
    height: float
    hue: int
    title: str


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("monet.api.guided", "."), autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template("page.html.jinja")


def page(placement: Placement, report: GuidedReport) -> str:
    """The page as text: it opens from disk and asks for nothing else. The highest addresses are at the top."""
    known = placement.requests
    ticks = max(1, int(known.died.max(initial=1)))
    numbers = np.flatnonzero(known.placed & (known.bytes > 0))
    boxes = []
    for i in numbers:
        born, died, size, offset = (int(a[i]) for a in (known.born, known.died, known.bytes, placement.offsets))
        boxes.append(
            _Box(
                x=WIDTH * born / ticks,
                y=HEIGHT * (1 - (offset + size) / placement.arena_bytes),
                width=WIDTH * (died - born) / ticks,
                height=HEIGHT * size / placement.arena_bytes,
                hue=int(i) * 137 % 360,  # the golden angle, as degrees
                title=f"request {int(i)}: {format_bytes(size)} at {offset:,}, ticks {born:,} to {died:,}",
            )
        )
    outside = np.flatnonzero(~known.placed)
    return _template().render(
        boxes=boxes,
        width=WIDTH,
        height=HEIGHT,
        report=str(report),
        arena=format_bytes(placement.arena_bytes),
        ticks=f"{ticks:,}",
        method=placement.method,
        outside=len(outside),
        outside_bytes=format_bytes(int(known.bytes[outside].sum())),
    )
