"""Small random problems for planner tests, and their optimum by exhaustion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from monet.errors import InvalidPlan
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.replay import replay
from monet.planner.solution import Run, Runs, Stage

SIZES = st.integers(1, 9)


def seconds(draw: st.DrawFn) -> float:
    return draw(st.integers(1, 20)) / 1e3


@st.composite
def problems(draw: st.DrawFn, operators: int = 3, pinned: bool = False) -> Problem:
    """Up to ``operators`` operators with every feature that ``Problem`` has, one or two of each."""
    count = draw(st.integers(2, operators))
    tensors: list[Tensor] = []
    links: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for i in range(count):
        known = [tensor.id for tensor in tensors]
        inputs = draw(st.lists(st.sampled_from(known), unique=True, max_size=2)) if known else []
        if known and not inputs and draw(st.booleans()):
            inputs = [known[-1]]
        outputs = [f"t{i}"] + ([f"u{i}"] if draw(st.integers(0, 3)) == 0 else [])
        tensors += [Tensor(k, draw(SIZES), pinned and draw(st.integers(0, 3)) == 0) for k in outputs]
        links.append((tuple(inputs), tuple(outputs)))
    size = {tensor.id: tensor.bytes for tensor in tensors}
    last_consumer = {k: i for i, (inputs, _) in enumerate(links) for k in inputs}
    forward = []
    for i, (ins, outs) in enumerate(links):
        again = draw(st.integers(0, 2)) == 0
        reads = (outs[-1],) if len(outs) > 1 and draw(st.booleans()) else ()
        implementations = [
            ForwardImplementation(
                "plain",
                seconds(draw),
                draw(st.integers(0, 6)),
                recompute_time_s=seconds(draw) if again else None,
                recompute_workspace_bytes=draw(st.integers(0, 6)) if again else None,
                recompute_reads=reads,
            )
        ]
        choose = draw(st.booleans())
        victims = [k for k in ins if last_consumer[k] == i and size[k] <= size[outs[0]]]
        if victims and choose:
            implementations.append(
                ForwardImplementation("inplace", seconds(draw), draw(st.integers(0, 3)), victims[0], size[victims[0]])
            )
        elif draw(st.booleans()):
            implementations.append(ForwardImplementation("lean", seconds(draw), 0))
        recomputable = draw(st.integers(0, 5)) > 0
        forward.append(ForwardOperator(f"op{i}", ins, outs, tuple(implementations), recomputable))
    intermediates: list[Intermediate] = []
    for i, (ins, outs) in enumerate(links):
        if draw(st.integers(0, 3)) == 0 and not intermediates:
            making = (outs[0], *(ins[:1] if draw(st.booleans()) else ()))
            intermediates.append(
                Intermediate(f"v{i}", draw(st.integers(1, 4)), f"op{i}", making, seconds(draw), draw(st.integers(0, 4)))
            )
    readable = [*size, *(v.id for v in intermediates)]
    backward = []
    for t in range(count):
        names = [
            draw(st.lists(st.sampled_from(readable), unique=True, max_size=2)) for _ in range(draw(st.integers(1, 2)))
        ]
        live, made = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        offered = tuple(
            BackwardImplementation(
                f"q{n}", seconds(draw), tuple(reads), draw(st.integers(0, 6)), draw(st.integers(0, min(live, made)))
            )
            for n, reads in enumerate(names)
        )
        backward.append(BackwardOperator(f"b{t}", offered, live, live + made))
    return Problem("random", tuple(tensors), tuple(forward), tuple(intermediates), tuple(backward), draw(SIZES))


def every_run(problem: Problem, operator: ForwardOperator) -> list[Run]:
    made = [v.id for v in problem.intermediates if v.operator == operator.id]
    subsets = [c for n in range(len(made) + 1) for c in itertools.combinations(made, n)]
    return [Run(operator.id, q.name, subset) for q in operator.implementations for subset in subsets]


def every_stage(problem: Problem, stage: int, reading: bool) -> Iterator[Stage]:
    """Every way to run one stage; nothing is recomputed for stages that read nothing."""
    operator = problem.backward[stage]
    choices: list[list[Run | None]] = [
        [None, *(every_run(problem, o) if o.recomputable and reading else [])] for o in problem.forward
    ]
    for runs in itertools.product(*choices):
        for q in operator.implementations:
            yield Stage(tuple(run for run in runs if run is not None), operator.id, q.name)


def best_by_exhaustion(problem: Problem, budget_bytes: int, reading: list[bool], most: int = 60_000) -> float | None:
    """The least time of any plan that fits, in seconds; infinity if none fits, None if there are too many."""
    forwards = [every_run(problem, operator) for operator in problem.forward]
    stages = [list(every_stage(problem, t, reading[t])) for t in range(len(problem.backward))]
    if math.prod(map(len, forwards)) * math.prod(map(len, stages)) > most:
        return None
    forward_s = {(o.id, q.name): q for o in problem.forward for q in o.implementations}
    back_s = {(o.id, q.name): q.time_s for o in problem.backward for q in o.implementations}
    make_s = {v.id: v.time_s for v in problem.intermediates}

    def cost(run: Run, again: bool) -> float:
        q = forward_s[run.operator, run.implementation]
        base = q.recompute_time_s if again and q.recompute_time_s is not None else q.time_s
        return base + sum(make_s[v] for v in run.intermediates)

    def stage_cost(stage: Stage) -> float:
        return sum(cost(r, True) for r in stage.recompute) + back_s[stage.backward, stage.implementation]

    plans: list[tuple[float, tuple[Run, ...], tuple[Stage, ...]]] = []
    for forward in itertools.product(*forwards):
        forward_cost = sum(cost(run, False) for run in forward)
        for chosen in itertools.product(*stages):
            plans.append((forward_cost + sum(map(stage_cost, chosen)), forward, chosen))
    for objective, forward, chosen in sorted(plans, key=lambda plan: plan[0]):
        try:
            found = replay(problem, Runs(forward, chosen))
        except InvalidPlan:
            continue
        if found.peak_bytes <= budget_bytes:
            return objective
    return float("inf")


def chain(length: int) -> Problem:
    """Convolution-like chain: op i reads t(i-1); its backward reads t(i-1); a fast and a lean implementation."""
    forward = tuple(
        ForwardOperator(
            f"op{i}",
            (f"t{i - 1}",) if i else (),
            (f"t{i}",),
            (ForwardImplementation("fast", 0.004 + i / 1e4, 6), ForwardImplementation("lean", 0.006 + i / 1e4, 0)),
        )
        for i in range(length)
    )
    backward = tuple(
        BackwardOperator(
            f"b{i}",
            (
                BackwardImplementation("fast", 0.008, (f"t{i - 1}",) if i else (), 6),
                BackwardImplementation("lean", 0.011, (f"t{i - 1}",) if i else (), 0),
            ),
            4 + i % 3,
            8 + i % 3,
        )
        for i in range(length - 1, -1, -1)
    )
    tensors = tuple(Tensor(f"t{i}", 4 + i % 3) for i in range(length))
    return Problem(f"chain of {length}", tensors, forward, (), backward, 10)


def repeated(blocks: int, width: int = 6) -> Problem:
    """Equal blocks as a transformer's: a branch of ``width`` operators of several sizes, one of them with mask bits and
    one in place, added to what came in. Each backward operator reads what its operator read."""
    sizes = [40 + 15 * (k % 3) for k in range(width)]
    tensors: list[Tensor] = [Tensor("x0", 40)]
    forward = [ForwardOperator("stem", (), ("x0",), (ForwardImplementation("plain", 0.004),))]
    intermediates: list[Intermediate] = []
    backward: list[BackwardOperator] = []
    for block in range(blocks):
        inside = f"x{block}"
        for k, size in enumerate(sizes):
            made = f"t{block}.{k}"
            runs = [ForwardImplementation("plain", 0.002 + k / 1e3, 10 * (k % 2))]
            if k == 2:
                runs.append(ForwardImplementation("in-place", 0.0019 + k / 1e3, 0, inside, min(size, sizes[k - 1])))
            tensors.append(Tensor(made, size, pinned=k == width - 1 and block % 4 == 3))
            forward.append(ForwardOperator(f"op{block}.{k}", (inside,), (made,), tuple(runs)))
            bits = f"bits{block}.{k}"
            choices = [BackwardImplementation("reads", 0.006 + k / 1e3, (inside,), 12, 8 * (k % 2))]
            if k == 3:
                intermediates.append(Intermediate(bits, 4, f"op{block}.{k}", (made,), 2e-4))
                choices.append(BackwardImplementation("bits", 0.0061 + k / 1e3, (bits,), 6))
            backward.append(BackwardOperator(f"b{block}.{k}", tuple(choices), 60, 60 + size))
            inside = made
        tensors.append(Tensor(f"x{block + 1}", 40))
        add = ForwardOperator(
            f"add{block}", (f"x{block}", inside), (f"x{block + 1}",), (ForwardImplementation("plain", 0.001),)
        )
        forward.append(add)
    return Problem(
        f"{blocks} equal blocks", tuple(tensors), tuple(forward), tuple(intermediates), tuple(reversed(backward)), 100
    )


@st.composite
def repeated_problems(draw: st.DrawFn) -> Problem:
    """Two or three equal blocks of two to four operators, whose times, sizes, workspaces and gradients are random."""
    blocks, width = draw(st.integers(2, 3)), draw(st.integers(2, 4))
    plain = repeated(blocks, width)
    size = [draw(st.integers(1, 9)) for _ in range(width)]
    time_s = [seconds(draw) for _ in range(width)]
    workspace = [draw(st.integers(0, 6)) for _ in range(width)]
    gradient = [draw(st.integers(0, 6)) for _ in range(width)]

    def position(name: str) -> int:
        return int(name.rpartition(".")[2]) if "." in name else 0

    tensors = tuple(replace(tensor, bytes=size[position(tensor.id)]) for tensor in plain.tensors)
    sizes = {tensor.id: tensor.bytes for tensor in tensors}
    forward = []
    for operator in plain.forward:
        k = position(operator.id)
        runs = [replace(q, time_s=time_s[k], workspace_bytes=workspace[k]) for q in operator.implementations]
        victims = [q.overwrites for q in runs if q.overwrites is not None]
        runs = [q for q in runs if q.overwrites is None or sizes[q.overwrites] <= sizes[operator.outputs[0]]]
        runs = [replace(q, aliased_bytes=sizes[q.overwrites]) if q.overwrites in victims else q for q in runs]
        forward.append(replace(operator, implementations=tuple(runs)))
    backward = []
    for stage in plain.backward:
        k = position(stage.id)
        aliased = min(gradient[k], gradient[k - 1])
        offered = tuple(
            replace(q, time_s=q.time_s + time_s[k], workspace_bytes=workspace[k], aliased_bytes=aliased)
            for q in stage.implementations
        )
        backward.append(replace(stage, implementations=offered, live_before_bytes=5, live_during_bytes=5 + gradient[k]))
    return replace(plain, tensors=tensors, forward=tuple(forward), backward=tuple(backward), fixed_bytes=3)
