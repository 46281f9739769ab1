"""The planner's input: one training step as tensors, operators, and implementations with their costs.

Nothing here knows PyTorch. A problem is made from a captured graph and its measured profile
(``monet.pipeline.lowering``), or from a published profile (``monet.planner.published.profile``).

Symbols of the papers: a forward operator is MONeT's *i*, a backward operator is its stage *t*
(here: one backward operator a stage), a tensor is what Checkmate calls *v*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tensor:
    """A buffer that the forward pass makes and that somebody may read later.

    ``pinned``: if anything in the backward pass (or a recomputation) may read it, it survives the
    forward pass in every plan: it is too small to be worth a decision, or cannot be recomputed.
    """

    id: str
    bytes: int
    pinned: bool = False

    def scaled(self, factor: float) -> Tensor:
        """So many times the bytes."""
        return replace(self, bytes=_times(self.bytes, factor))


@dataclass(frozen=True, slots=True)
class ForwardImplementation:
    """One way to run a forward operator.

    ``workspace_bytes``: peak bytes while it runs, beyond its inputs and *all* its outputs.
    ``overwrites``: the input tensor it destroys; that tensor's buffer becomes the output's, and
    ``aliased_bytes`` of the outputs need no memory of their own. Offered only by an operator that
    is the last forward consumer of the tensor.
    ``recompute_*``: cost when run again in the backward pass; None means as in the forward pass.
    ``recompute_reads``: tensors that only the recomputation reads, besides ``inputs``
    (batch norm's saved statistics).
    """

    name: str
    time_s: float
    workspace_bytes: int = 0
    overwrites: str | None = None
    aliased_bytes: int = 0
    recompute_time_s: float | None = None
    recompute_workspace_bytes: int | None = None
    recompute_reads: tuple[str, ...] = ()

    def scaled(self, factor: float) -> ForwardImplementation:
        """So many times the seconds and the bytes."""
        again_s, again_bytes = self.recompute_time_s, self.recompute_workspace_bytes
        return replace(
            self,
            time_s=self.time_s * factor,
            workspace_bytes=_times(self.workspace_bytes, factor),
            aliased_bytes=_times(self.aliased_bytes, factor),
            recompute_time_s=None if again_s is None else again_s * factor,
            recompute_workspace_bytes=None if again_bytes is None else _times(again_bytes, factor),
        )


@dataclass(frozen=True, slots=True)
class ForwardOperator:
    """One forward operator: ``inputs`` and ``outputs`` are ids of tensors of the problem.

    Parameters, buffers and the model's inputs are part of ``Problem.fixed_bytes``, not tensors.
    ``kind``: ``matmul``, ``attention`` (fused: the products and the softmax in one) or ``convolution``: work that grows
    faster than its result; "" for all else, and where nothing is known. No program reads it, baselines do.
    """

    id: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    implementations: tuple[ForwardImplementation, ...]
    recomputable: bool = True
    kind: str = ""

    def scaled(self, factor: float) -> ForwardOperator:
        """With all that its implementations cost so many times."""
        return replace(self, implementations=tuple(q.scaled(factor) for q in self.implementations))


@dataclass(frozen=True, slots=True)
class Intermediate:
    """A tensor made only on demand, right after a run of ``operator``: sign bits, an 8-bit pool index.

    ``id`` and ``bytes`` as for a tensor. ``reads``: the tensors (outputs of ``operator``) its making
    reads; they are in memory at that time anyway. ``time_s`` and ``workspace_bytes`` are what making it adds.
    ``kind``: ``sign-bits``, ``mask-bits`` (of dropout), ``pool-index``, ``sparse`` (bit mask and non-zero values),
    ``half`` (16-bit copy; it changes gradients), or "" for what needs no name.
    """

    id: str
    bytes: int
    operator: str
    reads: tuple[str, ...]
    time_s: float
    workspace_bytes: int = 0
    kind: str = ""

    def scaled(self, factor: float) -> Intermediate:
        """So many times the bytes, and what making it adds."""
        return replace(
            self,
            bytes=_times(self.bytes, factor),
            time_s=self.time_s * factor,
            workspace_bytes=_times(self.workspace_bytes, factor),
        )


@dataclass(frozen=True, slots=True)
class BackwardImplementation:
    """One way to run a backward operator; ``reads`` are ids of tensors or intermediates.

    ``workspace_bytes``: peak bytes beyond incoming gradients, what it reads, and the gradients it
    makes; ``aliased_bytes`` of the gradients it makes reuse the incoming gradient's buffer.
    """

    name: str
    time_s: float
    reads: tuple[str, ...]
    workspace_bytes: int = 0
    aliased_bytes: int = 0

    def scaled(self, factor: float) -> BackwardImplementation:
        """So many times the seconds and the bytes."""
        return replace(
            self,
            time_s=self.time_s * factor,
            workspace_bytes=_times(self.workspace_bytes, factor),
            aliased_bytes=_times(self.aliased_bytes, factor),
        )


@dataclass(frozen=True, slots=True)
class BackwardOperator:
    """One backward operator, in execution order.

    ``live_before_bytes``: gradients (and other values of the backward pass) in memory just before
    it runs, its incoming ones included; ``live_during_bytes``: the same plus the ones it makes.
    Both leave out ``Problem.fixed_bytes``.
    """

    id: str
    implementations: tuple[BackwardImplementation, ...]
    live_before_bytes: int
    live_during_bytes: int

    def scaled(self, factor: float) -> BackwardOperator:
        """So many times the gradients, with all that its implementations cost."""
        return replace(
            self,
            implementations=tuple(q.scaled(factor) for q in self.implementations),
            live_before_bytes=_times(self.live_before_bytes, factor),
            live_during_bytes=_times(self.live_during_bytes, factor),
        )


SYNCHRONOUS, ASYNCHRONOUS, STATIC = "synchronous", "asynchronous", "static"
"""How a second memory is used (AutoTM, Hildebrand et al., ASPLOS 2020): copies that the step waits for, copies beside
operators, and operators that read and write it in place."""
MODES = (ASYNCHRONOUS, SYNCHRONOUS, STATIC)
SMALLEST_MOVED = 1 << 20
"""Bytes: what is smaller is not worth a copy of its own."""


@dataclass(frozen=True, slots=True)
class SecondMemory:
    """A larger memory that tensors can be moved to after the forward pass made them, and back for the backward pass.

    ``write_rate``, ``read_rate``: bytes a second to and from it. Copies of one direction come one after the other, in
    the order in which they are issued; writes are over before the backward pass begins, so the directions never meet.
    ``limit_bytes``: how much it holds; None: whatever is moved. ``latency_s``: what a copy takes besides.
    ``slowdown_s``: by how much operators take longer for each byte that is copied beside them. ``mode``:
    ``asynchronous``, ``synchronous`` or ``static``. ``smallest_bytes``: of what is moved at all. ``taken``: of the
    channel's time, as much as is taken by copies that the problem does not have; the rest is for those that it has.
    """

    write_rate: float
    read_rate: float
    limit_bytes: int | None = None
    latency_s: float = 0.0
    slowdown_s: float = 0.0
    mode: str = ASYNCHRONOUS
    smallest_bytes: int = SMALLEST_MOVED
    taken: float = 0.0

    @property
    def undivided(self) -> SecondMemory:
        """With all of its channel's time."""
        return replace(self, taken=0.0)

    def write_s(self, size: int) -> float:
        """Seconds to write so many bytes."""
        return self.latency_s + size / (self.write_rate * (1 - self.taken))

    def read_s(self, size: int) -> float:
        """Seconds to read so many bytes."""
        return self.latency_s + size / (self.read_rate * (1 - self.taken))


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A parameter, or what an optimiser keeps for one, that is in memory from step to step, or carried: in the second
    memory, but for the operators that use it.

    ``bytes``: of memory; a step reads as many at least. ``written_bytes``: what it changes, and writes.
    ``forward``, ``backward``: positions of the operators that use it however they run.
    """

    id: str
    bytes: int
    written_bytes: int
    forward: frozenset[int]
    backward: frozenset[int]


@dataclass(frozen=True, slots=True)
class Problem:
    """What to plan: forward operators in order, backward operators in order, and fixed bytes.

    ``fixed_bytes`` are in memory during the whole step, whatever is decided. ``second``: a second memory, if there is
    one.
    """

    name: str
    tensors: tuple[Tensor, ...]
    forward: tuple[ForwardOperator, ...]
    intermediates: tuple[Intermediate, ...]
    backward: tuple[BackwardOperator, ...]
    fixed_bytes: int
    second: SecondMemory | None = None

    @property
    def in_place(self) -> bool:
        """Whether operators read and write the second memory themselves; False without one."""
        return self.second is not None and self.second.mode == STATIC

    @property
    def beside(self) -> SecondMemory | None:
        """The second memory, where copies to and from it run beside operators."""
        return self.second if self.second is not None and self.second.mode == ASYNCHRONOUS else None

    def scaled(self, factor: float) -> Problem:
        """Every number of bytes and seconds ``factor`` times, bytes rounded; fixed bytes, too."""
        return replace(
            self,
            tensors=tuple(tensor.scaled(factor) for tensor in self.tensors),
            forward=tuple(operator.scaled(factor) for operator in self.forward),
            intermediates=tuple(intermediate.scaled(factor) for intermediate in self.intermediates),
            backward=tuple(operator.scaled(factor) for operator in self.backward),
            fixed_bytes=_times(self.fixed_bytes, factor),
        )


def recompute_cost(implementation: ForwardImplementation) -> tuple[float, int]:
    """Seconds and workspace bytes when run again in the backward pass."""
    seconds, workspace = implementation.recompute_time_s, implementation.recompute_workspace_bytes
    return (
        implementation.time_s if seconds is None else seconds,
        implementation.workspace_bytes if workspace is None else workspace,
    )


def _times(count: int, factor: float) -> int:
    return round(count * factor)
