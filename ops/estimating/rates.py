"""How fast this machine is: seconds an operation or a byte, by kind of kernel."""

from __future__ import annotations

import hashlib
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monet.errors import ConfigError
from monet.ops.estimating.work import Work

PER_OCTAVE = 1
"""Points of a curve for each doubling; of measurements between two the fastest counts: what disturbs only slows."""
LEAST_S = 1e-6
"""No kernel takes less."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds an operation over operations a byte, or seconds a byte over bytes, by points; between two of them
    straight on logarithms, beyond the last as there. ``constant_below``: fewer bytes than the first point's take as
    long as those."""

    points: tuple[tuple[float, float], ...]
    constant_below: bool = False

    @classmethod
    def through(cls, found: Iterable[tuple[float, float]], *, constant_below: bool = False) -> Curve:
        """Through the fastest of the measurements whose places are about the same."""
        groups: dict[int, list[tuple[float, float]]] = {}
        for place, rate in found:
            if place > 0 and rate > 0:
                groups.setdefault(round(math.log2(place) * PER_OCTAVE), []).append((place, rate))
        fastest = (min(group, key=lambda point: point[1]) for group in groups.values())
        return cls(tuple(sorted(fastest)), constant_below)

    @classmethod
    def roofline(cls, flops_per_s: float, bytes_per_s: float) -> Curve:
        """Seconds an operation over operations a byte, where nothing but these two limits a kernel (Williams et al.,
        Roofline, CACM 2009)."""
        return cls(((flops_per_s / bytes_per_s, 1 / flops_per_s),), constant_below=True)

    def at(self, place: float) -> float:
        """The rate at ``place``, which is positive."""
        if place <= self.points[0][0]:
            first, rate = self.points[0]
            return rate * first / place if self.constant_below and place > 0 else rate
        if place >= self.points[-1][0]:
            return self.points[-1][1]
        after = bisect_left(self.points, (place, 0.0))
        (low, slow), (high, fast) = self.points[after - 1 : after + 1]
        share = math.log(place / low) / math.log(high / low)
        return math.exp(math.log(slow) * (1 - share) + math.log(fast) * share)


@dataclass(frozen=True, slots=True)
class Rates:
    """``compute`` and ``memory``: by kind of kernel, ``any_compute`` and ``any_memory`` for a kind that has none.

    ``origin``: where they come from, for people and for the key of what is planned with them. ``any_convolution``: of
    convolutions that have none of their kind, None: as ``any_compute``. ``kernel_s``: what every kernel takes at
    least. ``gpu``: its kernels ask for what a GPU's do. ``threads``: of a CPU, whose kernels ask for memory for each;
    None: as many as torch has here. ``kept_bytes``: what libraries keep beside the arena.
    """

    origin: str
    any_compute: Curve
    any_memory: Curve
    compute: Mapping[str, Curve] = field(default_factory=dict)
    memory: Mapping[str, Curve] = field(default_factory=dict)
    any_convolution: Curve | None = None
    kernel_s: float = 0.0
    gpu: bool = False
    threads: int | None = None
    kept_bytes: int = 0

    @classmethod
    def given(cls, flops_per_s: float, bytes_per_s: float) -> Rates:
        """Two rates for everything: operations cost what the slower of the two says."""
        origin = f"{flops_per_s:.3g} FLOP/s and {bytes_per_s:.3g} bytes/s, as given"
        return cls(origin, Curve.roofline(flops_per_s, bytes_per_s), Curve(((1.0, 1 / bytes_per_s),)))

    @classmethod
    def measured(cls, found: Iterable[tuple[Work, float]]) -> Rates:
        """From kernels' work and seconds: at least one with operations and one without."""
        compute: dict[str, list[tuple[float, float]]] = {}
        memory: dict[str, list[tuple[float, float]]] = {}
        for work, seconds in found:
            if not work.bytes:
                continue
            if work.flops is not None:
                compute.setdefault(work.kind, []).append((work.intensity, seconds / max(work.flops, 1.0)))
            else:
                memory.setdefault(work.kind, []).append((work.bytes, seconds / work.bytes))
        rates = cls(
            "",
            Curve.through(point for points in compute.values() for point in points),
            Curve.through((point for points in memory.values() for point in points), constant_below=True),
            {kind: Curve.through(points) for kind, points in sorted(compute.items())},
            {kind: Curve.through(points, constant_below=True) for kind, points in sorted(memory.items())},
        )
        digest = hashlib.sha256(repr(rates).encode()).hexdigest()[:12]
        return cls(f"rates measured here, {digest}", rates.any_compute, rates.any_memory, rates.compute, rates.memory)

    def seconds(self, work: Work) -> float:
        """About how long the work takes."""
        if not work.bytes:
            return max(LEAST_S, self.kernel_s)
        if work.flops is None:
            taken = work.bytes * self.memory.get(work.kind, self.any_memory).at(work.bytes)
        else:
            other = (self.any_convolution if work.convolution else None) or self.any_compute
            taken = work.flops * self.compute.get(work.kind, other).at(work.intensity)
        return max(LEAST_S, taken, self.kernel_s)


_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMGTP]?)(FLOPS|FLOP/s|B/s)\s*", re.IGNORECASE)


def parse_rates(text: str) -> Rates:
    """``"300GFLOPS,20GB/s"``: floating-point operations and bytes a second, in either order.

    Raises ``ConfigError`` for anything else.
    """
    found: dict[bool, float] = {}
    for part in text.split(","):
        match = _RATE.fullmatch(part)
        prefix = None if match is None else next((k for k in _PREFIXES if k.lower() == match[2].lower()), None)
        if match is None or prefix is None or float(match[1]) <= 0:
            raise ConfigError(f"{part.strip()!r} is no rate; write both, as 300GFLOPS,20GB/s")
        found[match[3].lower() == "b/s"] = float(match[1]) * _PREFIXES[prefix]
    if len(found) != 2:
        raise ConfigError(f"{text!r} names one rate of two; write operations and bytes a second, as 300GFLOPS,20GB/s")
    return Rates.given(found[False], found[True])
