"""``torch.compile(model, backend="monet")``: found by name, Dynamo's graphs run by plans, bit by bit eager's."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from loop_cases import BUDGET, HASTE, batches, equal, pair, told, train
from small_models import Awkward, Transformer
from torch import Tensor, nn
from torch._dynamo.output_graph import GraphCompileReason

from monet.api import compile_backend
from monet.api.in_place.plan_family import PlanFamily
from monet.api.in_place.training_calls import TrainingCalls
from monet.errors import CaptureError, InfeasibleBudget

pytestmark = pytest.mark.usefixtures("hasty_orders")

EXACT: dict[str, Any] = {"budget": BUDGET, "exact": True, **HASTE}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TrainingCalls]]:
    """What the graphs of a test are run by."""
    made: list[TrainingCalls] = []

    def noting(*args: Any) -> TrainingCalls:
        made.append(TrainingCalls(*args))
        return made[-1]

    monkeypatch.setattr(compile_backend, "TrainingCalls", noting)
    torch._dynamo.reset()
    yield made
    torch._dynamo.reset()


def counts(calls: list[TrainingCalls]) -> tuple[int, int, int]:
    families: set[PlanFamily] = {one.family for one in calls}
    planned, eager = sum(one.planned_calls for one in calls), sum(one.eager_calls for one in calls)
    return planned, eager, sum(family.made for family in families)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_loop_with_evaluation_and_a_last_smaller_batch(in_place: bool, calls: list[TrainingCalls]) -> None:
    planned, eager = pair()
    compiled: Any = planned
    if in_place:
        planned.compile(backend="monet", dynamic=False, options=EXACT)
    else:
        compiled = torch.compile(planned, backend="monet", dynamic=False, options=EXACT)

    def evaluate(model: Any) -> None:
        model.eval()
        with torch.no_grad():
            model(batches(8)[0])
        model.train()

    data = batches(8, 8, 3, 5, 8)
    assert equal(train(compiled, data, lambda: evaluate(compiled)), train(eager, data, lambda: evaluate(eager)))
    assert counts(calls) == (5, 0, 3)
    assert len({one.family for one in calls}) == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.slow
def test_a_graph_for_several_shapes(
    dynamic: bool | None, calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """Dynamo makes one by itself for the second shape, with sizes as arguments; one plan is for all of these."""
    planned, eager = pair()
    planned.compile(backend="monet", dynamic=dynamic, options=EXACT)
    data = batches(8, 3, 5, 8, 7, 6, 4, 2, 8)
    assert equal(train(planned, data), train(eager, data))
    planned_calls, eager_calls, plans = counts(calls)
    assert (planned_calls, eager_calls) == (9, 0) and plans <= 4
    assert not told(caplog)


@pytest.mark.slow
def test_a_graph_of_tokens_of_any_length(calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture) -> None:
    model, eager = Transformer(), Transformer()
    eager.load_state_dict(model.state_dict())
    compiled: Any = torch.compile(model, backend="monet", dynamic=True, options=EXACT)
    generator = torch.Generator().manual_seed(2)
    for rows, length in ((2, 5), (3, 9), (2, 7), (3, 4), (2, 9)):
        tokens = torch.randint(0, 50, (rows, length), generator=generator)
        for one in (compiled, eager):
            torch.manual_seed(rows)
            one(tokens=tokens).square().mean().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    planned_calls, eager_calls, plans = counts(calls)
    assert (planned_calls, eager_calls) == (5, 0) and plans <= 3
    assert not told(caplog)


def test_a_number_that_is_no_size_is_planned_one_by_one(
    calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture
) -> None:
    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, by: int) -> Tensor:
            scaled: Tensor = self.layer(x) * by
            return scaled

    model = Times()
    compiled: Any = torch.compile(model, backend="monet", dynamic=True, options=EXACT)
    for by in (3, 5, 3, 7):
        model.zero_grad()
        x = torch.randn(6, 4)
        compiled(x, by).sum().backward()
        assert model.layer.bias.grad is not None and torch.equal(model.layer.bias.grad, torch.full((4,), 6.0 * by))
    assert counts(calls) == (4, 0, 3)
    assert "dynamic=False" in told(caplog)[0]


def test_only_so_many_plans(calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    planned.compile(backend="monet", dynamic=False, options={**EXACT, "max_plans": 2})
    data = batches(8, 3, 5, 8, 4)
    assert equal(train(planned, data), train(eager, data))
    assert counts(calls) == (3, 2, 2)
    (sentence,) = told(caplog)
    assert "max_plans=2" in sentence


def test_other_shapes_without_a_plan(calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    planned.compile(backend="monet", dynamic=False, options={**EXACT, "on_mismatch": "eager"})
    data = batches(8, 3, 5, 8)
    assert equal(train(planned, data), train(eager, data))
    assert counts(calls) == (2, 2, 1)
    (sentence,) = told(caplog)
    assert "another graph" in sentence


@pytest.mark.slow
def test_attention_with_dropout_and_a_structure(calls: list[TrainingCalls]) -> None:
    inputs: list[tuple[nn.Module, Any]] = [
        (Transformer(), {"tokens": torch.randint(0, 50, (3, 9))}),
        (Awkward(), {"tokens": torch.randint(0, 11, (2, 4)), "scale": torch.randn(2, 4, 8)}),
    ]
    for model, kwargs in inputs:
        results = []
        for compiled in (model, torch.compile(model, backend="monet", options=EXACT)):
            model.zero_grad()
            torch.manual_seed(5)
            out: Any = compiled(**kwargs)
            (out["logits"] if isinstance(out, dict) else out).square().mean().backward()
            results.append([p.grad for p in model.parameters()])
        assert equal(*results)  # type: ignore[arg-type]
    assert counts(calls) == (2, 0, 2)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.3)

    def block(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.first(x))
        return self.second(self.drop(y)), y.mean()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x, mean = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            x = x + mean
        out: Tensor = self.head(x)
        return out


def test_the_plan_takes_the_place_of_checkpoints(calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture) -> None:
    model = Checkpointed()
    x, results = torch.randn(4, 8), []
    for compiled in (model, torch.compile(model, backend="monet", options=EXACT)):
        model.zero_grad()
        torch.manual_seed(5)
        compiled(x).square().mean().backward()
        results.append([p.grad for p in model.parameters()])
    assert equal(*results)  # type: ignore[arg-type]
    assert counts(calls) == (1, 0, 1)
    assert "gradient checkpointing" in caplog.text


class Cast(nn.Module):
    """Weights are cast once in each context, though they are used twice there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.second(torch.relu(self.second(self.first(x))))
            with torch.no_grad():
                beside = self.first(x)
            with torch.autocast("cpu", enabled=False):
                x = self.first(x.float())
            x = self.second(x) * beside
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Tensor = self.second(self.second(x))
        return out.float()


class Steeper(torch.autograd.Function):
    """Has a backward that is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = gradients[0] * x * 3
        return out


class Steep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(Steeper.apply(self.first(x)))  # type: ignore[no-untyped-call]
        return out


@pytest.mark.parametrize(("make", "around"), [(Cast, False), (Cast, True), (Steep, False)])
def test_gradients_are_eagers(make: type[nn.Module], around: bool, calls: list[TrainingCalls]) -> None:
    """Of a model with autocast in it, also in autocast, and of one with a backward of its own."""
    torch.manual_seed(3)
    model, x, results = make(), torch.randn(4, 6), []
    for compiled in (model, torch.compile(model, backend="monet", options=EXACT)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16) if around else nullcontext():
            out: Any = compiled(x)
        out.square().mean().backward()
        results.append([out, *(p.grad for p in model.parameters())])
    assert equal(*results)
    assert counts(calls) == (1, 0, 1)


def test_a_second_forward_before_the_backward(calls: list[TrainingCalls]) -> None:
    planned, eager = pair()
    planned.compile(backend="monet", options=EXACT)
    first, second = batches(8, 8)
    for model in (planned, eager):
        one, other = model(first), model(second)
        other.square().sum().backward()
        (one * 3).sum().backward()
    assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(calls) == (1, 1, 1)


def test_two_steps_under_way_at_a_time(calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture) -> None:
    """Of two graphs, one for each shape, over two arenas."""
    planned, eager = pair()
    planned.compile(backend="monet", dynamic=False, options={**EXACT, "concurrent": 2})
    for _ in range(2):
        for model in (planned, eager):
            model.zero_grad()
            one, other = (model(images) for images in batches(4, 8))
            (one.square().sum() * other.square().sum()).backward()
            del one, other
        assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(calls) == (4, 0, 2)
    assert all("the promise is the sum" in sentence for sentence in told(caplog))


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        out: Tensor = self.second(x)
        return out


def test_a_cut_is_an_error_with_its_place_or_eager(
    calls: list[TrainingCalls], caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Cut(), torch.randn(3, 4)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="graph_break") as refused:
        torch.compile(model, backend="monet", options={"budget": BUDGET})(x)
    assert "test_compile_backend.py" in str(refused.value) and "on_break" in str(refused.value)
    torch._dynamo.reset()
    results = []
    for compiled in (model, torch.compile(model, backend="monet", options={"budget": BUDGET, "on_break": "eager"})):
        model.zero_grad()
        compiled(x).sum().backward()
        results.append([p.grad for p in model.parameters()])
    assert equal(*results)  # type: ignore[arg-type]
    assert not calls and caplog.text.count("run without a plan") == 1 and "graph_break" in caplog.text


def test_a_cut_without_a_reason_says_where_the_reason_is() -> None:
    """Dynamo has no more to say of a break below the last line that it can go on at."""
    graph = torch.fx.symbolic_trace(nn.Linear(4, 4))
    frame = traceback.FrameSummary("model.py", 7, "forward", line="loss = self.loss_function(x)")
    reason = GraphCompileReason("step_unsupported", [frame])
    graph.compile_subgraph_reason = reason  # type: ignore[assignment]
    with pytest.raises(CaptureError, match=r"TORCH_LOGS=graph_breaks says why.*line 7: loss = self\.loss") as cut:
        compile_backend.monet(graph, [], options={"budget": BUDGET})
    assert "step_unsupported" not in str(cut.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs options"),
        ({"budget": BUDGET, "exakt": True}, "did you mean 'exact'"),
        ({"budget": "lots"}, "not an amount"),
        ({"budget": BUDGET, "on_break": "joint"}, "on_break"),
        ({"budget": BUDGET, "on_mismatch": "ignore"}, "on_mismatch"),
    ],
)
def test_what_is_asked_wrongly(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=sentence):
        torch.compile(nn.Linear(2, 2), backend="monet", options=options)(torch.ones(1, 2))


@pytest.mark.slow
def test_it_is_found_without_importing_monet() -> None:
    code = "import torch, sys; assert 'monet' in torch._dynamo.list_backends(); assert 'monet.api' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_refusal_names_no_class_of_monets() -> None:
    model, _ = pair()
    compiled = torch.compile(model, backend="monet", options={**EXACT, "budget": "100B"})
    with pytest.raises(InfeasibleBudget, match="No plan of the compiled model fits"):
        compiled(batches(8)[0])
