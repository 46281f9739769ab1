"""What a catalogue offers beyond, or short of, its default."""

from __future__ import annotations

from dataclasses import dataclass

from monet.errors import ConfigError

# Storages that are offered only where asked for: a step ends with an error where "sparse" is too full, and "half"
# changes gradients.
STORAGES = frozenset({"half", "sparse"})

# Share of the elements that may be other than zero. A ReLU of a symmetric distribution passes half, one after a
# residual sum (something non-negative plus a batch norm) about four fifths when training begins: give those 0.9.
DENSITY = 0.75


@dataclass(frozen=True, slots=True)
class Offering:
    """``exact``: only implementations whose results equal eager's bit by bit. ``storage``: which of ``STORAGES`` to
    offer besides. ``density``: the share of non-zero values that a sparse storage has room for, in (0, 1]. ``fused``:
    regions of operators, with kernels that PyTorch's compiler makes of them.

    Raises ``ConfigError`` for other storages and densities, and for what is ``exact`` and ``fused``.
    """

    exact: bool = False
    storage: frozenset[str] = frozenset()
    density: float = DENSITY
    fused: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.storage) - STORAGES)
        if unknown:
            raise ConfigError(f"storage {unknown[0]!r} is none of {', '.join(sorted(STORAGES))}")
        if self.exact and self.fused:
            raise ConfigError("exact and fused: a compiler's kernels round in another way; ask for one of them")
        if not 0.0 < self.density <= 1.0:
            raise ConfigError(f"density is {self.density}; it is a share of elements, more than 0 and at most 1")
