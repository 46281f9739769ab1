"""Plans of modules: their peaks, that equal inputs give equal files, and that planning changes nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import OrderedDict, UserDict
from typing import Any

import pytest
import torch
from module_cases import CASES, case_model, costs_by_bytes
from repository import ROOT
from slow_cases import slow_but

import monet
from monet.errors import ConfigError, PlanMismatch
from monet.pipeline.planning import plan_smallest
from monet.pipeline.preparation import prepare
from monet.planner.search import Solving, smallest_plan

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.mark.parametrize("case", slow_but(["residual"], CASES))
def test_measured_peak_is_the_promised_one_in_bytes(case: str) -> None:
    """In a fresh process, so that nothing else is counted."""
    script = ROOT / "tests" / "support" / "peak_of_step.py"
    done = subprocess.run([sys.executable, str(script), case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    measured, promised = map(int, done.stdout.split())
    assert measured == promised


def test_planning_changes_nothing() -> None:
    model = case_model("residual")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    monet.plan(model, CASES["residual"][1](0)[0], budget="10GB")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and model.training


def test_equal_inputs_give_equal_plan_files(tmp_path: Any) -> None:
    """Same profile (cached), same seed, a solve that ends by itself."""
    texts, (args, kwargs) = [], CASES["residual"][1](0)
    for i in range(2):
        monet.plan(case_model("residual"), args, kwargs, budget="97%", gap=0.02, time_limit_s=20).save(
            tmp_path / f"{i}.json"
        )
        texts.append((tmp_path / f"{i}.json").read_bytes())
    assert texts[0] == texts[1]


def test_a_mapping_is_keyword_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tokenizer gives it: a mapping, and no ``dict``."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    calls: list[tuple[Any, ...]] = [((), {"input": x}), (UserDict(input=x),), ({}, {"input": x})]
    plans = [monet.plan(model, *call, budget="1MB", time_limit_s=5) for call in calls]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0].model["inputs"][0]["path"] == [1, "input"]
    answers = [
        monet.fit(model, *call, memory="1MB", estimate=True, rates="1GFLOPS,1GB/s", batch=False, time_limit_s=5)
        for call in calls[:2]
    ]
    assert answers[0].eager_peak_bytes == answers[1].eager_peak_bytes > 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"time_limit_s": float("nan")}, "time_limit_s must be a finite number from 0 on, not nan"),
        ({"time_limit_s": "long"}, "time_limit_s must be a finite number"),
        ({"gap": -1}, "gap must be a finite number"),
        ({"window": 0}, "window must be a number from 1 on, or None, not 0"),
        ({"solver": 3}, "solver must be the name of one"),
        ({"reserve_bytes": "1MB"}, "reserve_bytes must be a number of bytes from 0 on, not '1MB'"),
        ({"bucket_bytes": -1}, "bucket_bytes must be a number of bytes"),
        ({"variant": "frob"}, "there is no variant 'frob'"),
    ],
)
def test_options_that_are_none_are_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], said: str
) -> None:
    def measure(*_: object, **__: object) -> None:
        raise AssertionError("an operator was measured")

    monkeypatch.setattr("monet.pipeline.preparation.measured_costs", measure)
    with pytest.raises(ConfigError, match=re.escape(said)):
        monet.plan(torch.nn.Linear(4, 4), torch.ones(2, 4), budget="1MB", **option)
    with pytest.raises(TypeError, match="not a str"):
        monet.plan("model", torch.ones(2, 4), budget="1MB")  # type: ignore[arg-type]


def test_the_smallest_plan_is_not_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for memory alone runs for nothing again what its peak does not need."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    args, kwargs = CASES["residual"][1](0)
    prepared = prepare(case_model("residual"), args, kwargs)
    smallest = plan_smallest(prepared, solving=Solving(time_limit_s=10))
    alone = smallest_plan(prepared.problem, solving=Solving(time_limit_s=10))
    assert smallest.summary.objective_s < alone.solution.objective_s
    assert smallest.plan.peak_bytes <= 1.01 * alone.solution.peak_bytes
    assert smallest.summary.bound_bytes is not None
    assert smallest.summary.bound_bytes <= smallest.plan.peak_bytes == smallest.plan.budget_bytes


class Nested(torch.nn.Module):
    """Takes tensors in a pair, in a dict, and in none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, pair: Any, parts: Any, options: Any, more: Any = ()) -> torch.Tensor:
        x = self.first(pair[0]).tanh() + pair[1] + parts["of"]["inner"][0]
        y: torch.Tensor = self.second(x)
        scaled: torch.Tensor = y * options.get("scale", 2.0) * (len(more) + 1)
        return scaled


def test_inputs_in_tuples_lists_and_dicts(tmp_path: Any) -> None:
    """The plan's file has their structure, that of empty ones, too."""
    torch.manual_seed(0)
    model = Nested()

    def call(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        torch.manual_seed(seed)
        parts = {"unused": torch.randn(2), "of": {"inner": [torch.randn(4, 6)]}}
        return ((torch.randn(4, 6), torch.randn(4, 6)), parts), {"options": {}, "more": []}

    plan = monet.plan(model, *call(0), budget="10GB", exact=True, time_limit_s=2, cores=1)
    plan.save(tmp_path / "plan.json")
    for planned in (monet.MonetModule(model, plan), monet.MonetModule(model, tmp_path / "plan.json")):
        args, kwargs = call(1)
        results = []
        for run in (planned, model):
            model.zero_grad()
            out = run(*args, **kwargs)
            out.sum().backward()
            results.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)) and len(results[0]) == 5
        with pytest.raises(PlanMismatch, match="options"):
            planned(*args, **{**kwargs, "options": {"scale": 3.0}})


def test_inputs_in_other_containers_have_no_structure_in_a_file() -> None:
    model = Nested()
    parts = OrderedDict(of={"inner": [torch.randn(4, 6)]})
    plan = monet.plan(
        model, ((torch.randn(4, 6), torch.randn(4, 6)), parts, {}), budget="10GB", time_limit_s=2, cores=1
    )
    with pytest.raises(PlanMismatch, match="containers of its own"):
        monet.MonetModule(model, plan)


def test_all_the_memory_of_a_buffer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A periodic window is one element less than what was made."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)

    class Windowed(torch.nn.Linear):
        window: torch.Tensor

        def __init__(self) -> None:
            super().__init__(64, 16)
            self.register_buffer("window", torch.hann_window(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.window

    model = Windowed()
    assert model.window.untyped_storage().nbytes() == 17 * 4
    plan = monet.plan(model, torch.ones(3, 64), budget="1MB", time_limit_s=2, cores=1)
    assert plan.fixed["buffers"] == 17 * 4
