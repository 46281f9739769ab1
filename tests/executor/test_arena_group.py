"""One arena for the plans of a model, and what a plan's steps ask of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import monet
from monet.executor.arena_group import ArenaGroup
from monet.executor.arena_requests import arena_requests

ROWS = 4, 6


@pytest.fixture(scope="module")
def modules() -> list[monet.MonetModule]:
    """Two plans of a model, for batches of different sizes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    plans = [monet.plan(model, torch.ones(rows, 8), budget="100%", time_limit_s=5.0) for rows in ROWS]
    return [monet.MonetModule(model, plan) for plan in plans]


def test_one_step_is_under_way_at_a_time(modules: list[monet.MonetModule]) -> None:
    group = ArenaGroup()
    for module in modules:
        group.add(module)
    assert group.peak_bytes == max(m.plan.fixed_bytes for m in modules) + max(m.plan.arena_bytes for m in modules)
    assert group.claim() and not group.claim(), "another thread's forward pass"
    output = modules[0](torch.ones(ROWS[0], 8))
    group.release()
    assert group.is_pending and not group.claim() and not group.claim()
    output.sum().backward()
    assert not group.is_pending and group.claim()
    group.release()


def test_requests_of_other_threads_are_apart(modules: list[monet.MonetModule]) -> None:
    plan = modules[0].plan
    alone = arena_requests(plan)
    assert not alone.with_crew and set(alone.crew) == {(0, 0)}
    number, placed = next((n, own[-1]) for n, own in enumerate(alone.own) if own and own[-1][1] is not None)

    def with_workers(number: int) -> monet.Plan:
        steps = [replace(step, workers=n == number) for n, step in enumerate(plan.steps)]
        return replace(plan, steps=tuple(steps))

    found = arena_requests(with_workers(number))
    assert found.with_crew and [n for n, crew in enumerate(found.crew) if crew != (0, 0)] == [number]
    assert found.crew[number] == placed and found.own[number] == alone.own[number][:-1]
    outside = next(n for n, own in enumerate(alone.own) if own and own[-1][1] is None)
    assert arena_requests(with_workers(outside)).crew[outside] == (0, 0)
