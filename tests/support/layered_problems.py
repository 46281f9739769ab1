"""Hand-made problems whose layers repeat, and what a user's ``torch.utils.checkpoint`` does with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st
from planner_problems import problems

from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    Tensor,
)

STREAM, NORM, PRODUCT = 4, 4, 8
"""Bytes of what passes from layer to layer, and of what a layer of ``layers`` makes inside."""


class Network:
    """Operators one after another, with names that say nothing; each takes a millisecond, backward too."""

    def __init__(self, seed: int = 0) -> None:
        self._names = random.Random(seed)
        self.tensors: list[Tensor] = []
        self.forward: list[ForwardOperator] = []
        self.backward: list[BackwardOperator] = []

    def add(
        self,
        size: int,
        inputs: Sequence[str] = (),
        reads: Sequence[str] = (),
        *,
        reads_itself: bool = False,
        kind: str = "",
        workspace: int = 0,
        pinned: bool = False,
    ) -> str:
        """``reads``: what its backward reads, besides its own result with ``reads_itself``; returns the result."""
        name = f"n{self._names.getrandbits(60):x}"
        kernel = ForwardImplementation("aten", 1e-3, workspace)
        self.tensors.append(Tensor(name, size, pinned))
        self.forward.append(ForwardOperator(f"make {name}", tuple(inputs), (name,), (kernel,), kind=kind))
        back = BackwardImplementation("aten", 1e-3, (*reads, name) if reads_itself else tuple(reads))
        self.backward.append(BackwardOperator(f"back of {name}", (back,), 0, 0))
        return name

    def layer(self, x: str, *shared: str) -> str:
        """Norm, product, activation and sum with ``x``; the activation also reads what all layers ``shared``."""
        norm = self.add(NORM, [x], [x])
        product = self.add(PRODUCT, [norm], [norm], kind="matmul", workspace=1)
        activation = self.add(STREAM, [product, *shared], [product])
        return self.add(STREAM, [activation, x])

    def problem(self, fixed_bytes: int = 0) -> Problem:
        return Problem(
            "layers", tuple(self.tensors), tuple(self.forward), (), tuple(reversed(self.backward)), fixed_bytes
        )


def layers(count: int, seed: int = 0) -> Problem:
    """An embedding, layers of four operators, and a head that reads what the last of them makes."""
    network = Network(seed)
    x = network.add(STREAM)
    for _ in range(count):
        x = network.layer(x)
    network.add(1, [x], [x])
    return network.problem()


def without_blocks() -> Problem:
    """A chain of tensors that are all of other sizes."""
    network = Network()
    x = network.add(1)
    for size in range(2, 20):
        x = network.add(size, [x], [x])
    return network.problem()


@st.composite
def repeated_problems(draw: st.DrawFn) -> Problem:
    """A random problem's operators several times over; the first of each copy also reads a result of the one before."""
    one = draw(problems(operators=5, pinned=True))
    copies = draw(st.integers(2, 5))
    link = draw(st.sampled_from([tensor.id for tensor in one.tensors]))
    kinds = [draw(st.sampled_from(["", "matmul"])) for _ in one.forward]

    def named(name: str, k: int) -> str:
        return f"{name}/{k}"

    tensors, forward, intermediates, backward = [Tensor(named(link, -1), 3)], [], [], []
    forward.append(ForwardOperator("begin", (), (named(link, -1),), (ForwardImplementation("only", 1e-3),)))
    for k in range(copies):
        tensors += [replace(tensor, id=named(tensor.id, k)) for tensor in one.tensors]
        for operator, kind in zip(one.forward, kinds, strict=True):
            inputs = tuple(named(name, k) for name in operator.inputs)
            forward.append(
                ForwardOperator(
                    named(operator.id, k),
                    inputs if operator is not one.forward[0] else (named(link, k - 1), *inputs),
                    tuple(named(name, k) for name in operator.outputs),
                    tuple(
                        replace(
                            q,
                            overwrites=None,
                            aliased_bytes=0,
                            recompute_reads=tuple(named(name, k) for name in q.recompute_reads),
                        )
                        for q in operator.implementations
                    ),
                    operator.recomputable,
                    kind,
                )
            )
        intermediates += [
            replace(
                v, id=named(v.id, k), operator=named(v.operator, k), reads=tuple(named(name, k) for name in v.reads)
            )
            for v in one.intermediates
        ]
    for k in reversed(range(copies)):
        backward += [
            replace(
                operator,
                id=named(operator.id, k),
                implementations=tuple(
                    replace(q, reads=tuple(named(name, k) for name in q.reads)) for q in operator.implementations
                ),
            )
            for operator in one.backward
        ]
    return Problem("repeated", tuple(tensors), tuple(forward), tuple(intermediates), tuple(backward), one.fixed_bytes)
