"""What a person asks of a second memory: ``disk``, ``disk:/scratch,limit=20GB``, ``host``, ``bandwidth=12GB/s``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from monet.base.amounts import parse_byte_count
from monet.errors import ConfigError
from monet.planner.problem import ASYNCHRONOUS, MODES, SMALLEST_MOVED, STATIC, SecondMemory
from monet.planner.schedules import MOVING, moving_variant

_ACCEPTED = (
    "disk (a folder that monet chooses), disk:FOLDER, host (main memory, for a model on a GPU), or bandwidth=RATE for "
    "a memory that is not there, such as 12GB/s; then, after commas: limit=BYTES, write=RATE, read=RATE, mode="
    + "|".join(MODES)
)


@dataclass(frozen=True, slots=True)
class Offload:
    """``disk``: the memory is a file; ``folder``: where, None: monet chooses. ``host``: it is pinned main memory, of a
    model on a GPU. With neither the rates are all that is known of it, and a plan for it can be made and not run.

    Rates are bytes a second, None: measured. ``limit_bytes``: how much it may hold; None: what is moved.
    """

    disk: bool
    folder: Path | None = None
    write_rate: float | None = None
    read_rate: float | None = None
    limit_bytes: int | None = None
    mode: str = ASYNCHRONOUS
    host: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is a memory of this machine, which a plan is run with."""
        return self.disk or self.host

    def __str__(self) -> str:
        """As ``parse_offload`` takes it."""
        parts = [] if not self.disk else ["disk" if self.folder is None else f"disk:{self.folder}"]
        parts += ["host"] if self.host else []
        parts += [f"bandwidth={self.write_rate:.0f}B/s"] if not self.is_here else []
        parts += [f"write={self.write_rate:.0f}B/s"] if self.write_rate is not None else []
        parts += [f"read={self.read_rate:.0f}B/s"] if self.read_rate is not None else []
        parts += [f"limit={self.limit_bytes}"] if self.limit_bytes is not None else []
        parts += [f"mode={self.mode}"] if self.mode != ASYNCHRONOUS else []
        return ",".join(parts)

    def check_use(self, mode: str) -> None:
        """Raises ``ConfigError`` where the memory cannot be used so; other names than modes are none of its."""
        if self.is_here and mode == STATIC:
            what = "a disk is not" if self.disk else "main memory is not for PyTorch's on a GPU"
            raise ConfigError(f"static is for a memory that operators can address, which {what}")

    def check_device(self, kind: str) -> None:
        """Raises ``ConfigError`` where a model on such a device (``cpu``, ``cuda``) cannot reach the memory."""
        if self.disk and kind != "cpu":
            raise ConfigError(f"a disk is the second memory of a model on the CPU, and this one is on {kind}: use host")
        if self.host and kind == "cpu":
            raise ConfigError("the model is in main memory already: host is for one on a GPU, and this one has a disk")

    def at(self, write_rate: float, read_rate: float, slowdown_s: float = 0.0) -> SecondMemory:
        """What the planner is told, with the rates that were measured where none were given."""
        return SecondMemory(
            self.write_rate or write_rate,
            self.read_rate or read_rate,
            self.limit_bytes,
            slowdown_s=slowdown_s,
            mode=self.mode,
        )

    def assumed(self) -> SecondMemory:
        """The same where every rate is given. Raises ``ConfigError`` where one is not."""
        if self.write_rate is None or self.read_rate is None:
            what = "a disk's" if self.disk else "a GPU's"
            raise ConfigError(f"{what} rates are measured with a model; for a profile give --offload bandwidth=12GB/s")
        return self.at(self.write_rate, self.read_rate)


def parse_offload(value: str | Offload) -> Offload:
    """Raises ``ConfigError`` for anything but what it accepts."""
    if isinstance(value, Offload):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"offload is {value!r}; write {_ACCEPTED}")
    first, *others = (part.strip() for part in value.split(","))
    kind, separator, place = first.partition(":")
    if kind == "disk":
        if separator and not place:
            raise ConfigError(f"--offload {value!r} names no folder; write {_ACCEPTED}")
        offload = Offload(True, Path(place).expanduser() if place else None)
    elif first == "host":
        offload = Offload(False, host=True)
    elif first.startswith("bandwidth="):
        offload, others = Offload(False), [first, *others]
    else:
        raise ConfigError(f"--offload {value!r}: write {_ACCEPTED}")
    named = [part.partition("=")[0] for part in others]
    if len(set(named)) < len(named):
        raise ConfigError(f"--offload {value!r} says {max(named, key=named.count)} more than once")
    for part in others:
        offload = _with(offload, part, value)
    if not offload.is_here and (offload.write_rate is None or offload.read_rate is None):
        raise ConfigError(f"--offload {value!r} leaves a rate open; write {_ACCEPTED}")
    offload.check_use(offload.mode)
    return offload


def _with(offload: Offload, part: str, value: str) -> Offload:
    name, separator, text = part.partition("=")
    if separator and name == "limit":
        limit = parse_byte_count(text)
        if limit < SMALLEST_MOVED:
            raise ConfigError(
                f"--offload {value!r}: nothing would be moved, as tensors under {SMALLEST_MOVED:,} bytes (1 MiB) are "
                "not; give a larger limit, or leave --offload out"
            )
        return replace(offload, limit_bytes=limit)
    if name == "mode":
        if text not in MODES:
            raise ConfigError(f"--offload {value!r}: mode is one of {', '.join(MODES)}, not {text!r}")
        return replace(offload, mode=text)
    if name == "bandwidth":
        return replace(offload, write_rate=_rate(text), read_rate=_rate(text))
    if name == "write":
        return replace(offload, write_rate=_rate(text))
    if name == "read":
        return replace(offload, read_rate=_rate(text))
    raise ConfigError(f"--offload {value!r}: {part!r} is not known; write {_ACCEPTED}")


def _rate(text: str) -> float:
    found = re.fullmatch(r"(.*?)\s*/\s*s", text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is no rate; write bytes a second, such as 12GB/s or 800MB/s")
    rate = parse_byte_count(found.group(1))
    if rate <= 0:
        raise ConfigError(f"a rate of {text!r} moves nothing")
    return float(rate)


def variant_with(offload: Offload | None, variant: str) -> str:
    """The variant that is planned where a second memory is there: MONeT's program with moves, or the one that was asked
    for.

    Raises ``ConfigError`` for one that moves and no second memory, and for one that a disk cannot serve.
    """
    if offload is None:
        if variant in MOVING:
            raise ConfigError(f"the variant {variant} moves tensors to a second memory; give one with --offload")
        return variant
    offload.check_use(variant)
    return moving_variant(variant)
