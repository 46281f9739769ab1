"""Exact replay of a solution on its problem: validity, cost, and bytes at every moment.

Replay is independent of the program that made the solution: it shares no code with the program (hence ``_cost``
beside ``problem.recompute_cost``) and knows nothing of its columns. It walks the runs in order and gives every tensor
*instances*. An instance lives from the run that makes it to its last read before the tensor is made again::

    forward      a   b   c                      stage 0          stage 1
    runs        [a] [b] [c]                 bwd c            [b]   bwd b
    tensor b         |----------------------|                |-------|
                     made                   last read        made again

Two rules of the problem decide what a *recomputation* makes:

* an output that the implementation lists in ``recompute_reads`` is read, not made (batch norm's
  statistics, a dropout mask);
* a pinned output is made beside the one that survives and thrown away at once: it counts while the
  operator runs.

Where there is a second memory, its channel is simulated (``channel.py``): a moved tensor's first instance lives until
its release, and another one from the issue of its return on. Its cost is the simulated time, waiting included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from monet.errors import InvalidPlan
from monet.planner.channel import Channel, Traffic
from monet.planner.problem import (
    STATIC,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    SecondMemory,
    Tensor,
)
from monet.planner.solution import Run, Runs, Stage


@dataclass(frozen=True, slots=True)
class Moment:
    """``bytes`` in memory, fixed bytes included, while ``what`` happens.

    ``stage`` is the index of the backward operator, None in the forward pass.
    """

    what: str
    stage: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What a solution costs: ``objective_s`` is the sum of the times of everything it runs, and waits for.

    ``traffic``: what its copies cost; None where there is no second memory.
    """

    peak_bytes: int
    objective_s: float
    moments: tuple[Moment, ...]
    traffic: Traffic | None = None


@dataclass(slots=True)
class _Instance:
    """``size`` bytes in memory from moment ``made`` to moment ``last``, both included.

    ``overwritten_by``: the run that destroyed it; nothing may read it afterwards. ``copied``: its copy to the second
    memory is under way; nothing may destroy it.
    """

    size: int
    made: int
    last: int
    overwritten_by: str | None = None
    copied: bool = False


@dataclass(slots=True)
class _Walk:
    """The state of the walk. ``moments``: what happens, the stage, and bytes besides instances and fixed bytes.

    ``current``: the latest instance of each tensor. ``away``: what the second memory holds. ``coming``: what is on its
    way back. ``static``: what operators read and write in the second memory itself.
    """

    problem: Problem
    tensors: dict[str, Tensor]
    moments: list[tuple[str, int | None, int]] = field(default_factory=list)
    instances: list[_Instance] = field(default_factory=list)
    current: dict[str, _Instance] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    clock_s: float = 0.0  # the sum of the first ``counted`` of ``seconds``
    counted: int = 0
    size: dict[str, int] = field(default_factory=dict)
    channel: Channel | None = None
    away: set[str] = field(default_factory=set)
    coming: dict[str, _Instance] = field(default_factory=dict)
    static: frozenset[str] = frozenset()

    def begin(self, what: str, stage: int | None, extra_bytes: int) -> None:
        """The next moment; what is read, made and overwritten from here on happens in it."""
        self.moments.append((what, stage, extra_bytes))

    def read(self, names: Iterable[str]) -> None:
        what, stage, _ = self.moments[-1]
        where = "in the forward pass" if stage is None else f"in stage {stage}"
        for name in names:
            instance = self.current.get(name)
            if instance is None:
                raise InvalidPlan(f"{what} {where} reads {name!r}, which has not been made")
            if instance.overwritten_by is not None:
                raise InvalidPlan(f"{what} {where} reads {name!r}, which {instance.overwritten_by} overwrote")
            instance.last = len(self.moments) - 1
            if self.channel is not None:
                self.channel.operand(self.size[name])
            if name in self.static and self.channel is not None:
                self.seconds.append(self.channel.read_in_place(self.size[name]))

    def make(self, name: str, size: int) -> None:
        instance = _Instance(0 if name in self.static else size, len(self.moments) - 1, len(self.moments) - 1)
        self.instances.append(instance)
        self.current[name] = instance
        if self.channel is not None:
            self.channel.operand(size)
        if name in self.static and self.channel is not None:
            self.seconds.append(self.channel.write_in_place(size))

    def overwrite(self, name: str) -> None:
        what = self.moments[-1][0]
        if self.current[name].copied:
            raise InvalidPlan(f"{what} overwrites {name!r}, which is being copied to the second memory")
        if name in self.static:
            raise InvalidPlan(f"{what} overwrites {name!r}, which lives in the second memory")
        self.current[name].overwritten_by = what

    def now_s(self) -> float:
        """Seconds since the step began."""
        self.clock_s += sum(self.seconds[self.counted :])
        self.counted = len(self.seconds)
        return self.clock_s

    def write(self, names: Iterable[str]) -> None:
        """Copies to the second memory begin."""
        what = self.moments[-1][0]
        for name in names:
            if self.channel is None:
                raise InvalidPlan(f"{what} is followed by a write of {name!r}, and there is no second memory")
            if name in self.static:
                continue
            instance = self.current.get(name)
            if instance is None or instance.overwritten_by is not None or name in self.away:
                raise InvalidPlan(f"{what} is followed by a write of {name!r}, which is not in memory to be moved")
            instance.copied = True
            self.away.add(name)
            self.seconds.append(self.channel.write(name, self.size[name], self.now_s()))

    def release(self, names: Iterable[str]) -> None:
        """Waits for copies; the memory of their tensors is free from here on."""
        what = self.moments[-1][0]
        for name in names:
            instance = self.current.get(name)
            if self.channel is None or instance is None or not instance.copied:
                raise InvalidPlan(f"{what} is followed by the release of {name!r}, which is not being moved")
            self.seconds.append(self.channel.wait(name, self.now_s()))
            instance.last = max(instance.last, len(self.moments) - 1)
            del self.current[name]

    def begin_stage(self, stage: Stage, index: int) -> None:
        """Copies back are issued, into memory that is taken from the stage's first moment on, and waited for."""
        for name in stage.issues:
            if self.channel is None or name not in self.away or name in self.coming:
                raise InvalidPlan(f"stage {index} issues {name!r}, which is not in the second memory")
            self.current.pop(name, None)  # what was read back before is gone after its last read
            instance = _Instance(self.size[name], len(self.moments), len(self.moments))
            self.instances.append(instance)
            self.coming[name] = instance
            self.seconds.append(self.channel.read(name, self.size[name], self.now_s()))
        for name in stage.returns:
            if self.channel is None or name not in self.coming:
                raise InvalidPlan(f"stage {index} waits for {name!r}, whose return was not issued")
            self.seconds.append(self.channel.wait(name, self.now_s()))
            self.current[name] = self.coming.pop(name)
            self.current[name].last = max(self.current[name].last, len(self.moments))

    def end_forward(self) -> None:
        """Writes are over before the backward pass begins: what it reads is read back."""
        for name, instance in self.current.items():
            if instance.copied:
                raise InvalidPlan(f"{name!r} is being moved and is not released in the forward pass")

    def finish(self) -> Replay:
        """Adds every instance to the moments [made, last] and takes the maximum."""
        change = [0] * (len(self.moments) + 1)
        for instance in self.instances:
            change[instance.made] += instance.size
            change[instance.last + 1] -= instance.size
        moments, live = [], self.problem.fixed_bytes
        for (what, stage, extra), step in zip(self.moments, change, strict=False):
            live += step
            moments.append(Moment(what, stage, live + extra))
        peak = max((moment.bytes for moment in moments), default=self.problem.fixed_bytes)
        traffic = None if self.channel is None else self.channel.traffic()
        if traffic is not None:
            self.seconds.append(traffic.slowdown_s)
        return Replay(peak, sum(self.seconds), tuple(moments), traffic)

    def end(self) -> None:
        """Raises ``InvalidPlan`` where something is still on its way."""
        for name in self.coming:
            raise InvalidPlan(f"the return of {name!r} was issued, and nothing waits for it")
        limit = None if self.channel is None else self.channel.memory.limit_bytes
        if limit is not None and (held := sum(self.size[name] for name in (*self.away, *self.static))) > limit:
            raise InvalidPlan(f"{held} bytes are moved, {held - limit} more than the second memory holds")


def replay(problem: Problem, runs: Runs) -> Replay:
    """Runs ``runs`` on ``problem`` and returns their exact cost.

    Raises:
        InvalidPlan: something is read that is not in memory, is run out of order, is not offered
            by the problem, or is missing.
    """
    operators = {operator.id: (index, operator) for index, operator in enumerate(problem.forward)}
    intermediates = {intermediate.id: intermediate for intermediate in problem.intermediates}
    if [run.operator for run in runs.forward] != [operator.id for operator in problem.forward]:
        raise InvalidPlan("the forward pass does not run every forward operator once, in the problem's order")
    if [stage.backward for stage in runs.stages] != [operator.id for operator in problem.backward]:
        raise InvalidPlan("the stages do not run every backward operator once, in the problem's order")
    walk = _Walk(problem, {tensor.id: tensor for tensor in problem.tensors})
    if problem.second is not None:
        _begin_channel(walk, problem.second, runs)
    elif runs.moved:
        raise InvalidPlan(f"{runs.moved[0]!r} is moved, and there is no second memory")
    for run, operator in zip(runs.forward, problem.forward, strict=True):
        _run(walk, run, operator, intermediates, stage=None, gradient_bytes=0)
        walk.write(run.writes)
        walk.release(run.releases)
    walk.end_forward()
    for index, stage in enumerate(runs.stages):
        walk.begin_stage(stage, index)
        previous = -1
        for run in stage.recompute:
            if run.operator not in operators:
                raise InvalidPlan(f"stage {index} recomputes {run.operator!r}, which is no forward operator")
            position, operator = operators[run.operator]
            if not operator.recomputable:
                raise InvalidPlan(f"stage {index} recomputes {run.operator!r}, which cannot be recomputed")
            if position <= previous:
                raise InvalidPlan(f"stage {index} recomputes {run.operator!r} out of forward order")
            previous = position
            _run(walk, run, operator, intermediates, index, problem.backward[index].live_before_bytes)
        _backward(walk, stage, index)
    walk.end()
    return walk.finish()


def cost_of_plan(problem: Problem, runs: Runs) -> Replay | None:
    """As ``replay``; None where ``runs`` are no plan of ``problem``, as along another order."""
    try:
        return replay(problem, runs)
    except (InvalidPlan, KeyError):
        return None


def _begin_channel(walk: _Walk, memory: SecondMemory, runs: Runs) -> None:
    walk.channel = Channel(memory)
    walk.size = {tensor.id: tensor.bytes for tensor in walk.problem.tensors}
    walk.size |= {made.id: made.bytes for made in walk.problem.intermediates}
    if memory.mode == STATIC:
        walk.static = frozenset(runs.moved)


def _run(
    walk: _Walk,
    run: Run,
    operator: ForwardOperator,
    intermediates: dict[str, Intermediate],
    stage: int | None,
    gradient_bytes: int,
) -> None:
    """One run of a forward operator, then its intermediates, one moment each."""
    implementation = _named(operator, run.implementation)
    again = stage is not None
    kept_reads = implementation.recompute_reads if again else ()
    discarded = [
        walk.tensors[k].bytes for k in operator.outputs if again and walk.tensors[k].pinned and k not in kept_reads
    ]
    seconds, workspace = _cost(implementation, again)
    what = f"{'recompute' if again else 'forward'} {operator.id!r} ({implementation.name})"
    walk.begin(what, stage, gradient_bytes + workspace - implementation.aliased_bytes + sum(discarded))
    walk.seconds.append(seconds)
    walk.read(operator.inputs)
    walk.read(kept_reads)
    for name in operator.outputs:
        if not again or not (walk.tensors[name].pinned or name in kept_reads):
            walk.make(name, walk.tensors[name].bytes)
    if implementation.overwrites is not None:
        if implementation.overwrites not in operator.inputs:
            raise InvalidPlan(f"{what} overwrites {implementation.overwrites!r}, which it does not read")
        walk.overwrite(implementation.overwrites)
    for name in run.intermediates:
        intermediate = intermediates.get(name)
        if intermediate is None or intermediate.operator != operator.id:
            raise InvalidPlan(f"{what} makes {name!r}, which is no intermediate of this operator")
        walk.begin(f"make {name!r} after {what}", stage, gradient_bytes + intermediate.workspace_bytes)
        walk.seconds.append(intermediate.time_s)
        walk.read(intermediate.reads)
        walk.make(name, intermediate.bytes)


def _backward(walk: _Walk, stage: Stage, index: int) -> None:
    operator = walk.problem.backward[index]
    for implementation in operator.implementations:
        if implementation.name == stage.implementation:
            break
    else:
        raise InvalidPlan(f"backward operator {operator.id!r} has no implementation {stage.implementation!r}")
    extra = operator.live_during_bytes + implementation.workspace_bytes - implementation.aliased_bytes
    walk.begin(f"backward {operator.id!r} ({implementation.name})", index, extra)
    walk.seconds.append(implementation.time_s)
    walk.read(implementation.reads)


def _named(operator: ForwardOperator, name: str) -> ForwardImplementation:
    for implementation in operator.implementations:
        if implementation.name == name:
            return implementation
    raise InvalidPlan(f"forward operator {operator.id!r} has no implementation {name!r}")


def _cost(implementation: ForwardImplementation, again: bool) -> tuple[float, int]:
    """Seconds and workspace bytes of a run in the forward pass or ``again`` in the backward pass."""
    seconds, workspace = implementation.time_s, implementation.workspace_bytes
    if again and implementation.recompute_time_s is not None:
        seconds = implementation.recompute_time_s
    if again and implementation.recompute_workspace_bytes is not None:
        workspace = implementation.recompute_workspace_bytes
    return seconds, workspace
