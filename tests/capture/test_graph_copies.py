"""Copies that are left out of a captured graph, and those that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from eager_reference import assert_same_gradients
from torch import nn

import monet
from monet.base.graph import operator_inputs
from monet.capture import capture

aten = torch.ops.aten


class _Computes(nn.Module):
    def __init__(self, program: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.program = nn.Linear(8, 8), program

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self.linear(x).sin()).square().mean()


def _from_its_beginning(y: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(y[2:].clone(), (3, 8), (8, 1), 0)


def _copy_of_a_copy(y: torch.Tensor) -> torch.Tensor:
    return y[1:].clone()[2:].clone()[3:] * 2


def _as_complex(y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(y.view(-1)[2:36].clone().view(17, 2)).abs()


def _all(y: torch.Tensor) -> torch.Tensor:
    return y.clone()[:, 2:] * y.t().clone().t()[:, :1]


def _written_only(y: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(16, 8)
    z[:, ::2] = y[:, 4:]
    return z


def _widened(y: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(16, 8)
    z[:, 1::2] = y[:, :1]
    z[2:4] = y[5]
    return z


def _to_another_dtype(y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z[:, 1] = y[:, 0].bfloat16()
    z[3:5, :2].copy_(y[0, :2].bfloat16())
    return z


def _from_itself(y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z[:, 3] = z[:, 5]
    return z.cos()


def _written(y: torch.Tensor) -> torch.Tensor:
    z = y.clone()
    z[:, 2] = 0.5
    return z.cos() + y


def _assigned_and_read(y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z[3] = y[4].clone()
    return z.cos() + y[4].clone()


def _written_copy_of_a_part(y: torch.Tensor) -> torch.Tensor:
    z = y[3:6].clone()
    z[:, 2] = 0.5
    return z.cos()


def _part_of_a_part(y: torch.Tensor) -> torch.Tensor:
    z = y * 2
    z[2:6, ::2] = y[:4, :4]
    z[3, 2:] = y[4, 1:7] * 3
    return z.cos() * y


def _kept(y: torch.Tensor) -> torch.Tensor:
    return y.clone()


COPIES: dict[Callable[[torch.Tensor], torch.Tensor], int] = {
    _all: 0, _written_only: 0, _widened: 0, _kept: 0, _to_another_dtype: 1,
    _from_its_beginning: 1, _copy_of_a_copy: 2, _as_complex: 1, _assigned_and_read: 1, _from_itself: 1,
    _written: 1, _written_copy_of_a_part: 1, _part_of_a_part: 2,
}  # fmt: skip
"""Program → copies that are left in its forward pass: of parts, and of what is written to."""


@pytest.mark.parametrize("program", COPIES, ids=lambda program: program.__name__.strip("_"))
@pytest.mark.sampled(2)
def test_what_reads_a_copy_reads_the_original(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model, x = _Computes(program), torch.randn(16, 8)
    graph = capture(model, (x,), {}).graph
    left = [op for op in graph.forward if op.target in (aten.clone.default, aten.copy.default)]
    assert len(left) == COPIES[program], left
    read = {name for op in (*graph.forward, *graph.backward) for name in operator_inputs(op)}
    assert read <= graph.values.keys() and {graph.storage(name) for name in graph.values} <= graph.values.keys()
    planned = monet.MonetModule(copy.deepcopy(model), monet.plan(model, (x,), budget="1GB"))
    for _ in range(2):
        x = torch.randn(16, 8)
        for module in (model, planned):
            module.zero_grad()
            loss = module(x)
            loss.backward()
        assert torch.equal(loss, model(x))
        assert_same_gradients(planned, model)


def test_a_tensor_for_a_copy_alone_is_not_made() -> None:
    """Autograd makes one for the gradient of a tensor that is written to."""

    def program(y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        z[3] = 0.5
        return z.cos()

    graph = capture(_Computes(program), (torch.randn(16, 8),), {}).graph
    assert not [op for op in graph.backward if op.target is aten.new_empty_strided.default]


def test_a_part_of_a_part_is_written_to_a_copy_of_the_part() -> None:
    """Not of all of the tensor."""

    def program(y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        z[:4, 2:] = y[:4, :6]
        return z.cos() * y

    graph = capture(_Computes(program), (torch.randn(16, 8),), {}).graph
    written = [op for op in graph.forward if op.target is aten.slice_scatter.default]
    sizes = [graph.values[name].storage_bytes for op in written for name in op.outputs if name is not None]
    assert sizes == [4 * 4 * 8, 4 * 16 * 8]
