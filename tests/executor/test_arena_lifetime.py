"""Tensors may outlive the module whose arena they lie in: the arena stays as long as they do."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

import monet
from monet.native import allocator


@pytest.fixture(scope="module")
def planned() -> tuple[nn.Module, monet.Plan]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, monet.plan(model, _x(), budget="100%", time_limit_s=5.0)


def _x() -> torch.Tensor:
    return torch.ones(4, 8)


def test_an_output_outlives_its_module(planned: Any) -> None:
    model, plan = planned
    gc.collect()
    before = allocator.live_bytes()
    module = monet.MonetModule(model, plan)
    output = module(_x())
    of_graph = output.grad_fn
    del module, output
    gc.collect()
    assert allocator.live_bytes() >= before + plan.arena_bytes, "autograd's node holds activations in it"
    del of_graph
    gc.collect()
    assert allocator.live_bytes() == before


def test_backward_after_the_module_is_gone(planned: Any) -> None:
    model, plan = planned
    loss = monet.MonetModule(model, plan)(_x()).square().sum()
    gc.collect()
    loss.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(_x()).square().sum().backward()
    assert all(torch.equal(g, p.grad) for g, p in zip(found, model.parameters(), strict=True))
    model.zero_grad(set_to_none=True)


def test_modules_come_and_go_without_a_backward_pass(planned: Any) -> None:
    model, plan = planned
    gc.collect()
    before = allocator.live_bytes()
    for _ in range(3):
        module = monet.MonetModule(model, plan)
        output = module(_x())
        copy.deepcopy(module)(_x())
        monet.MonetModule(model, plan)(_x())
    del module, output
    gc.collect()
    assert allocator.live_bytes() == before
