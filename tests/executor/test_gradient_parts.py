"""Which gradients a backward pass gives away after which step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from monet.capture import capture
from monet.executor.backward_parts import BackwardParts
from monet.executor.codegen import Generated
from monet.executor.gradient_parts import Part, gradient_parts
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.offers.implementation import Implementation


def _steps(model: nn.Module, x: torch.Tensor) -> tuple[Catalogue, Sequence[Implementation], int]:
    """Of the step by defaults, and which one begins the backward pass."""
    offers = catalogue(capture(model, (x,)).graph)
    forward, backward = (
        [next(iter(named[op.name].values())) for op in operators if op.name in named]
        for operators, named in ((offers.graph.forward, offers.forward), (offers.graph.backward, offers.backward))
    )
    return offers, [*forward, *backward], len(forward)


@pytest.mark.parametrize(
    ("part_bytes", "counts"),
    [
        ((1,), [1, 1, 1, 1, 1]),
        ((65,), [2, 2, 1]),
        ((1, 128), [1, 2, 2]),
        ((128, 1), [2, 1, 1, 1]),
        ((1, 1, 999), [1, 1, 3]),
    ],
)
def test_a_part_has_as_many_bytes_as_its_bucket(part_bytes: Sequence[int], counts: list[int]) -> None:
    """Of five gradients of 64 bytes each."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(5)))
    offers, steps, border = _steps(model, torch.randn(3, 4))
    parts = gradient_parts(offers, steps, border, part_bytes)
    assert [len(part.sources) for part in parts] == counts and parts[-1].last == len(steps) - 1
    assert sorted(source for part in parts for source in part.sources) == sorted(offers.graph.gradients)
    for part in parts:
        own = {offers.storage(name) for source in part.sources for name in (source, offers.graph.gradients[source])}
        touches = [
            n for n, step in enumerate(steps)
            if own & {offers.storage(name) for name in (*step.inputs(), *filter(None, step.outputs))}
        ]  # fmt: skip
        assert max(touches) == part.last or part is parts[-1]


class _Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.shift


def test_a_gradient_that_no_step_makes_is_there_from_the_beginning() -> None:
    offers, steps, border = _steps(_Shifted(), torch.randn(3, 4))
    names = {source.target: source.value for source in offers.graph.sources}
    product = steps[0]  # in place of the backward pass: it reads the weight alone
    assert gradient_parts(offers, [*steps[:border], product], border, (1,)) == (
        Part(border - 1, (names["shift"],)),
        Part(border, (names["weight"],)),
    )


def test_parts_that_are_given_up_are_settled_once() -> None:
    settled: list[str] = []

    def parts() -> BackwardParts:
        code = Generated.__new__(Generated)
        object.__setattr__(code, "parts", (Part(0, ("a",)), Part(1, ("b",))))
        return BackwardParts(code, 0, iter([[], []]), lambda: settled.append("settled"))

    one = parts()
    one.run(0)
    one.close()
    assert not one.is_open and settled == ["settled"]
    one.close()
    other = parts()
    other.run(0)
    other.run(1)
    other.close()
    assert not other.is_open and settled == ["settled"]
