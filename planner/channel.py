"""The channel to a second memory, simulated: when each copy is over, how long the step waits, what was copied.

Copies are executed in the order in which they are issued, one at a time, beside the step's operators. A plan writes in
the forward pass and reads in the backward pass, and all writes are waited for before the backward pass begins; what is
carried from step to step is read and written in the backward pass. One queue is both directions'.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monet.planner.problem import ASYNCHRONOUS, SYNCHRONOUS, SecondMemory


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a step copies. ``copy_s``: how long the channel is busy; ``waited_s``: how long the step waits for it, so
    that the rest is hidden behind operators; ``slowdown_s``: by how much copies slow operators down. ``operand_bytes``:
    what operators read and make; ``slow_operand_bytes``: of that, in the second memory.

    Of a memory that operators read and write in place, ``waited_s`` is all of ``copy_s``.
    """

    written_bytes: int
    read_bytes: int
    copy_s: float
    waited_s: float
    slowdown_s: float
    operand_bytes: int = 0
    slow_operand_bytes: int = 0

    @property
    def fast_operand_share(self) -> float:
        """Of the bytes that operators read and make, those in the fast memory (AutoTM, figure 10)."""
        return 1 - self.slow_operand_bytes / self.operand_bytes if self.operand_bytes else 1.0

    @property
    def hidden_bytes(self) -> int:
        """Of what is copied, as much as the step does not wait for, by time."""
        share = 1 - self.waited_s / self.copy_s if self.copy_s > 0 else 0.0
        return round(max(0.0, share) * (self.written_bytes + self.read_bytes))


@dataclass(slots=True)
class Channel:
    """Times are seconds since the step began; each call is told the time, and returns how long the step waits."""

    memory: SecondMemory
    _free_s: float = 0.0
    _done_s: dict[str, float] = field(default_factory=dict)
    _written: int = 0
    _read: int = 0
    _copy_s: float = 0.0
    _waited_s: float = 0.0
    _operands: int = 0
    _in_place_bytes: int = 0

    def operand(self, size: int) -> None:
        """An operator reads or makes so many bytes, wherever they are."""
        self._operands += size

    def write(self, name: str, size: int, now_s: float) -> float:
        """A copy to the second memory is issued."""
        self._written += size
        return self._issue(name, self.memory.write_s(size), now_s)

    def read(self, name: str, size: int, now_s: float) -> float:
        """A copy back is issued."""
        self._read += size
        return self._issue(name, self.memory.read_s(size), now_s)

    def wait(self, name: str, now_s: float) -> float:
        """Until the newest copy of ``name`` is over."""
        waited = max(0.0, self._done_s[name] - now_s)
        self._waited_s += waited
        return waited

    def done_s(self, name: str) -> float:
        """When the newest copy of ``name`` is over."""
        return self._done_s[name]

    def write_in_place(self, size: int) -> float:
        """An operator writes its result to the second memory."""
        self._written += size
        self._in_place_bytes += size
        return self._in_place(self.memory.write_s(size))

    def read_in_place(self, size: int) -> float:
        """An operator reads from the second memory."""
        self._read += size
        self._in_place_bytes += size
        return self._in_place(self.memory.read_s(size))

    def traffic(self) -> Traffic:
        """Of all calls so far."""
        beside = self._written + self._read if self.memory.mode == ASYNCHRONOUS else 0
        slowdown_s = self.memory.slowdown_s * beside
        return Traffic(
            self._written, self._read, self._copy_s, self._waited_s, slowdown_s, self._operands, self._in_place_bytes
        )

    def _issue(self, name: str, seconds: float, now_s: float) -> float:
        self._copy_s += seconds
        self._free_s = max(self._free_s, now_s) + seconds
        self._done_s[name] = self._free_s
        # A copy that the step does not go on beside is waited for at once; a later wait for it takes no time.
        return self.wait(name, now_s) if self.memory.mode == SYNCHRONOUS else 0.0

    def _in_place(self, seconds: float) -> float:
        self._copy_s += seconds
        self._waited_s += seconds
        return seconds
