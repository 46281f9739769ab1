"""Graphs of ``torch.compile`` are joined with their derivatives as Dynamo hands them over, and give the step that
torch.export of the same model gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from small_models import Awkward, Residual, Transformer
from torch import Tensor, nn

from monet.base.graph import CONSTANT, Ref
from monet.capture import Captured, forward_graph, kept_captures
from monet.capture.lifted_graph import LiftedGraph
from monet.capture.tracing import capture


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def lifted(model: nn.Module, *inputs: Any, **kwargs: Any) -> tuple[LiftedGraph, tuple[Any, ...]]:
    """The graph that Dynamo makes of such a call, and its inputs."""
    found: list[tuple[LiftedGraph, tuple[Any, ...]]] = []

    def backend(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        def run(*args: Any) -> Any:
            module = LiftedGraph(graph, args)
            found.append((module, module.inputs(args)))
            return graph.forward(*args)

        return run

    torch.compile(model, backend=backend)(*inputs, **kwargs)
    ((module, given),) = found
    return module, given


def contents(captured: Captured) -> tuple[Any, ...]:
    """A graph without the names of its values."""
    graph = captured.graph
    number: dict[str, int] = {}

    def numbered(name: str | None) -> int | None:
        return None if name is None else number.setdefault(name, len(number))

    def plain(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return "value", numbered(argument.name)
        return [plain(item) for item in argument] if isinstance(argument, list | tuple) else argument

    def told(kind: str, target: str) -> str:  # a constant by its content
        return str(captured.constants[target].tolist()) if kind == CONSTANT else target

    sources = sorted((source.kind, told(source.kind, source.target), source.value) for source in graph.sources)
    for _, _, name in sources:
        numbered(name)
    tangents = [numbered(name) for name in graph.tangents]
    operators = [
        (op.target, plain(op.args), plain(op.kwargs), [numbered(name) for name in op.outputs])
        for op in (*graph.forward, *graph.backward)
    ]
    looks = [
        (value.shape, value.stride, value.offset, value.dtype, value.storage_bytes, numbered(value.storage))
        for value in sorted(graph.values.values(), key=lambda value: number.get(value.name, -1))
        if value.name in number
    ]
    gradients = sorted((numbered(of), numbered(name)) for of, name in graph.gradients.items())
    return (
        [source[:2] for source in sources],
        tangents,
        operators,
        looks,
        gradients,
        [numbered(name) for name in graph.outputs],
    )


class Numbers(nn.Module):
    """Makes tensors of numbers, changes some in place, and holds one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.held = nn.Linear(4, 4), torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        mask = x.new_zeros(4, 4)
        mask[1:2] = 3.0
        with torch.no_grad():
            beside = self.linear(x).mean()
        out: Tensor = self.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + mask + self.held + beside
        return out


MODELS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "batch norm": (Residual, {"x": torch.randn(2, 3, 8, 8)}),
    "attention": (Transformer, {"tokens": torch.randint(0, 50, (3, 9))}),
    "structures": (Awkward, {"tokens": torch.randint(0, 11, (2, 4)), "scale": torch.randn(2, 4, 8)}),
    "numbers": (Numbers, {"x": torch.randn(4, 4)}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_the_step_is_that_of_an_export(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, kwargs = MODELS[name]
    model, inputs = lifted(make(), **kwargs)
    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "export", None)
        direct = capture(model, inputs)
    exported = lambda model, inputs, detached: forward_graph._export(model, inputs, None)  # noqa: E731
    monkeypatch.setattr("monet.capture.tracing.forward_graph", exported)
    assert contents(direct) == contents(capture(model, inputs))


def test_names_and_lines_are_the_models_own() -> None:
    model = nn.Sequential(Residual(), nn.Flatten())
    module, inputs = lifted(model, torch.randn(2, 3, 8, 8))
    assert {name for name, _ in module.named_parameters()} == {name for name, _ in model.named_parameters()}
    assert {name for name, _ in module.named_buffers()} == {name for name, _ in model.named_buffers()}
    graph = capture(module, inputs).graph
    trained = {source.target for source in graph.sources if source.kind == "parameter"}
    assert trained == {name for name, _ in model.named_parameters()}
    for op in (*graph.forward, *graph.backward):
        assert "eval_with_key" not in op.where
    assert any("small_models.py" in op.where for op in graph.forward)
    assert any("small_models.py" in op.where for op in graph.backward)


def test_names_that_are_taken() -> None:
    first: Any = nn.Linear(4, 4)
    second, first.inputs = nn.Linear(4, 4), nn.Linear(4, 4)  # as a method of what stands for the graph

    def both(x: Tensor) -> Tensor:
        result: Tensor = second(first.inputs(first(x)))
        return result

    module, inputs = lifted(both, torch.randn(2, 4))  # type: ignore[arg-type]
    own = {id(p) for p in (*first.parameters(), *second.parameters())}
    assert {id(p) for p in module.parameters()} == own
    assert len(capture(module, inputs).graph.gradients) == 6


def test_it_is_captured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """In a process, and by the next one; another graph of the same geometry is another step."""
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_captures, "_in_memory", {})
    traced: list[nn.Module] = []

    def counted(model: nn.Module, *args: Any, **kwargs: Any) -> Captured:
        traced.append(model)
        return capture(model, *args, **kwargs)

    monkeypatch.setattr(kept_captures, "capture", counted)
    made = []
    for start in range(3):
        torch._dynamo.reset()
        torch.manual_seed(start)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU() if start < 2 else nn.Tanh())
        module, inputs = lifted(model, torch.randn(2, 4))
        made += [kept_captures.capture_once(module, inputs) for _ in range(2)]
        kept_captures._in_memory.clear()
    assert len(traced) == 2
    assert contents(made[0]) == contents(made[1]) == contents(made[2]) != contents(made[4])
