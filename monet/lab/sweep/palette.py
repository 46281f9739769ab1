"""How each variant looks, the same in every picture.

Colours are told apart with the common colour blindnesses and on light and dark ground (contrast 3 : 1 or more on
both), and never stand alone: markers and dashes differ, too. Parts of MONeT have whole lines, baselines broken ones.
MONeT itself has the colour of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from monet.planner.ablation import MONET
from monet.planner.schedules import VARIANTS

INK = "#0b0c0d"
"""Stands for the page's text colour; ``figures`` puts ``currentColor`` in its place."""


@dataclass(frozen=True, slots=True)
class Look:
    """``dash``: a matplotlib line style."""

    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]]
    width: float = 1.6


_BROKEN = (0.0, (5.0, 2.0))
_DOTTED = (0.0, (1.5, 1.5))
_MIXED = (0.0, (3.0, 1.0, 1.0, 1.0))

_LOOKS = {
    MONET: Look(INK, "o", "-", 2.4),
    "conv": Look("#1f77c9", "s", "-"),
    "output-activated": Look("#12906b", "^", "-"),
    "intermediate-activated": Look("#c2549a", "D", "-"),
    "in-place": Look("#d55e00", "v", "-"),
    "none": Look("#7f8790", "X", "-"),
    "monet+move": Look("#0f8a9a", "$m$", "-", 2.4),
    "move-only": Look("#5b74d6", "$v$", _BROKEN),
    "asynchronous": Look("#6a82b8", "$a$", _DOTTED),
    "synchronous": Look("#c05f25", "$y$", _MIXED),
    "static": Look("#9a5fb5", "$t$", _DOTTED),
    "pytorch": Look("#a8740a", "P", _DOTTED),
    "sqrt-n": Look("#3b8fb5", "<", _BROKEN),
    "block": Look("#3f8f3f", "d", _MIXED),
    "sqrt-n-blocks": Look("#5a7fa0", "H", _MIXED),
    "selective": Look("#b06a9e", "8", _MIXED),
    "checkmate-d": Look("#7f6bd6", ">", _BROKEN),
    "checkmate-o": Look("#cf4a5e", "h", _BROKEN),
    "gist": Look("#6b8c1f", "*", _DOTTED),
    "gist-reduced": Look("#8a6d3b", "p", _BROKEN),
}
_OTHERS = (Look("#7f8790", "p", _BROKEN), Look("#1f77c9", "d", _DOTTED), Look("#d55e00", "H", _DOTTED))


def look(variant: str) -> Look:
    """The look of ``variant``; one that this table does not know gets a look of its own, too."""
    if variant in _LOOKS:
        return _LOOKS[variant]
    others = [name for name in VARIANTS if name not in _LOOKS]
    place = others.index(variant) if variant in others else 0
    return _OTHERS[place % len(_OTHERS)]
