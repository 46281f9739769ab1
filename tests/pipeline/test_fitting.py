"""Between the program's account of a plan and the arena it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import Residual

from monet.pipeline import fitting
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare
from monet.planner.construction.first_plans import fastest_plan


def test_an_interrupted_solve_is_not_begun_again_where_its_arena_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arena of a solve that ended by itself is too large, there is another."""
    prepared = prepare(Residual(), (torch.randn(2, 3, 8, 8),), {})
    ended, solves = ["interrupted"], []

    def plan_variant(_: str, problem: Any, budget_bytes: int, *__: Any, **options: Any) -> Any:
        found = fastest_plan(problem)
        assert found is not None
        solves.append(budget_bytes)
        if len(solves) > 1:
            raise KeyboardInterrupt
        return replace(found, status=ended[0])

    monkeypatch.setattr(fitting, "plan_variant", plan_variant)
    for status, expected in (("interrupted", 1), ("time_limit", 2)):
        ended[0] = status
        solves.clear()
        with pytest.raises(KeyboardInterrupt):
            plan_prepared(prepared, prepared.problem.fixed_bytes + 1)  # less than any arena
        assert len(solves) == expected, status
