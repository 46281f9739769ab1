"""Which implementations to offer: the settings that a person may give, made once where they are given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offering:
    """``exact``: only implementations whose results equal eager's bit by bit. ``storage``: compressed storages to offer
    besides (``sparse``, ``half``). ``density``: the share of non-zero values that a sparse storage has room for, in
    (0, 1].
    """

    exact: bool = False
    storage: frozenset[str] = frozenset()
    density: float = 0.75
