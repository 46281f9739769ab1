"""The whole training step as a graph to order: against an execution that counts, and against counts by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from layout_problems import max_load
from small_models import Awkward, Inverted, Residual, Transformer
from torch import nn
from torch._subclasses import FakeTensorMode

from monet.base.graph import BUFFER, PARAMETER, Graph, Ref, operator_inputs
from monet.capture import capture
from monet.errors import CaptureError
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.planner.layout import layout
from monet.planner.layout.order_lifetimes import order_lifetimes
from monet.planner.order import best_order
from monet.planner.order.graph import OrderGraph, memory_along, peak_bytes
from monet.planner.order.heuristics import ORDERS, update_nodes
from monet.plans.format import aligned
from monet.step.training_step.optimizer_trace import OptimizerFactory, trace_update
from monet.step.training_step.order_graph import GENERATOR, step_graph

aten = torch.ops.aten


class Changed(nn.Module):
    """A buffer that the forward pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.register_buffer("average", torch.ones(6))
        self.average: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mix(x))
        self.average.mul_(0.9).add_(x.detach().mean(0))
        return x.square().sum()


def _awkward() -> Graph:
    return capture(Awkward(), (torch.zeros(2, 4, dtype=torch.long),), {"scale": torch.randn(2, 4, 8)}).graph


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "residual": lambda: capture(Residual(), (torch.randn(2, 3, 8, 8),)).graph,
    "inverted": lambda: capture(Inverted(), (torch.randn(2, 4, 8, 8, requires_grad=True),)).graph,
    "transformer": lambda: capture(Transformer(), (torch.zeros(2, 6, dtype=torch.long),)).graph,
    "awkward": _awkward,
    "changed": lambda: capture(Changed(), (torch.randn(5, 6),)).graph,
}
MADE: dict[str, Graph] = {}


@pytest.fixture(params=list(GRAPHS))
def graph(request: pytest.FixtureRequest) -> Graph:
    return captured(request.param)


def captured(name: str) -> Graph:
    if name not in MADE:
        MADE[name] = GRAPHS[name]()
    return MADE[name]


def executed(graph: Graph) -> list[int]:
    """Bytes that the operators have made and that are alive while each runs, views left out, by running them all."""

    def tensor(name: str) -> torch.Tensor:
        value = graph.values[name]
        integers = not value.dtype.is_floating_point
        flat = torch.zeros(value.storage_bytes // value.dtype.itemsize, dtype=value.dtype)
        return (flat if integers else flat + 0.5).as_strided(value.shape, value.stride, value.offset)

    def resolved(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return alive[argument.name]
        return [resolved(item) for item in argument] if isinstance(argument, list | tuple) else argument

    operators = [*graph.forward, *graph.backward]
    given = [s.value for s in graph.sources] + [name for name in graph.tangents if name is not None]
    alive = {name: tensor(name) for name in given}
    outside = {t.untyped_storage()._cdata for t in alive.values()}
    kept = {*given, *graph.outputs, *graph.gradients.values()}
    found = []
    for place, op in enumerate(operators):
        results = op.target(*resolved(op.args), **{k: resolved(v) for k, v in op.kwargs})
        for name, result in zip(op.outputs, [results] if op.single else results, strict=False):
            if name is not None:
                alive[name] = result
        if not op.view:
            storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in alive.values()}
            found.append(sum(aligned(size) for key, size in storages.items() if key not in outside))
        results = result = None
        read_later = {name for later in operators[place + 1 :] for name in operator_inputs(later)}
        alive = {name: t for name, t in alive.items() if name in kept or name in read_later}
    return found


def test_program_order_needs_what_running_it_does(graph: Graph) -> None:
    step = step_graph(graph)
    assert memory_along(step, step.working) == executed(graph)


def test_memory_along_the_updates_of_adam(graph: Graph) -> None:
    """Adam as torch writes it: gradients are read by ``lerp_`` and ``addcmul_``, then two temporaries."""
    step, before = step_graph(graph, torch.optim.Adam), step_graph(graph)
    along = memory_along(step, step.working)
    head, tail = along[: len(before.working)], along[len(before.working) :]
    assert head == executed(graph)
    parameters = [s.value for s in graph.sources if s.kind == PARAMETER and s.value in graph.gradients]
    gradient_bytes = [aligned(graph.values[graph.gradients[name]].storage_bytes) for name in parameters]
    temporary_bytes = [aligned(graph.values[name].storage_bytes) for name in parameters]
    storages = {graph.storage(name) for name in graph.outputs if name is not None}
    storages |= {graph.storage(g) for name, g in graph.gradients.items() if name not in parameters}
    left = sum(aligned(graph.values[name].storage_bytes) for name in storages)
    expected = []
    for k, temporary in enumerate(temporary_bytes):
        # lerp_, mul_, addcmul_, sqrt, div, add_, addcdiv_
        others = left + sum(gradient_bytes[k + 1 :])
        here = [gradient_bytes[k]] * 3 + [temporary, 2 * temporary, temporary, temporary]
        expected += [others + now for now in here]
    assert tail == expected


def test_operators_of_an_update() -> None:
    def operators(optimizer: OptimizerFactory) -> list[str]:
        step = step_graph(captured("changed"), optimizer)
        return [node.name.split(".")[-1] for node in step.nodes if node.name.startswith("mix.bias.")]

    adam = ["lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"]
    assert operators(torch.optim.Adam) == adam
    assert operators(torch.optim.AdamW) == ["mul_", *adam]  # weight decay
    assert operators(partial(torch.optim.SGD, lr=0.1)) == ["add_"]
    assert operators(partial(torch.optim.SGD, lr=0.1, momentum=0.9)) == ["mul_", "add_", "add_"]


def test_tied_weights_are_updated_once() -> None:
    graph = captured("awkward")
    step = step_graph(graph, torch.optim.Adam)
    named = [s for s in graph.sources if s.kind == PARAMETER]
    assert len({graph.storage(s.value) for s in named}) == len(named) - 1
    assert sum(node.name.endswith(".addcdiv_") for node in step.nodes) == len(named) - 1


@pytest.mark.parametrize("name", ["awkward", "inverted"])
def test_updates_come_after_all_readers_of_the_parameter_in_every_order(name: str) -> None:
    graph = captured(name)
    step = step_graph(graph, torch.optim.Adam)
    operators = {op.name: op for op in (*graph.forward, *graph.backward)}
    trained = {graph.storage(s.value): s.target for s in graph.sources if s.value in graph.gradients}
    readers = 0
    for heuristic in ORDERS.values():
        order = [step.nodes[n].name for n in heuristic.make(step)]
        at = {node: place for place, node in enumerate(order)}
        for node, place in at.items():
            for value in operator_inputs(operators[node]) if node in operators else ():
                if f"{trained.get(graph.storage(value))}.addcdiv_" in at:
                    assert place < at[f"{trained[graph.storage(value)]}.addcdiv_"]
                    readers += 1
    assert readers > len(ORDERS) * len(trained)


def test_random_operators_keep_their_order() -> None:
    graph = captured("transformer")
    random = [op.name for op in graph.forward if op.random]
    assert len(random) > 3
    step = step_graph(graph, torch.optim.Adam)
    (generator,) = {n for node in step.nodes if node.name in random for n in node.overwrites}
    assert generator in step.inputs and generator not in step.bytes
    for method, heuristic in ORDERS.items():
        order = [step.nodes[n].name for n in heuristic.make(step)]
        assert [name for name in order if name in random] == random, method
    assert GENERATOR not in graph.values


def test_what_changes_buffers_is_a_node_that_overwrites_them() -> None:
    graph = captured("residual")
    step = step_graph(graph, torch.optim.Adam)
    buffers = [s for s in graph.sources if s.kind == BUFFER]
    changed = [n for op, n in zip((*graph.forward, *graph.backward), step.nodes, strict=False) if n.overwrites]
    norms = sum("native_batch_norm" in node.name or "batch_norm" in node.name for node in changed)
    assert norms == sum(s.target.endswith("running_mean") for s in buffers) == 3
    assert len({n for node in changed for n in node.overwrites}) == len(buffers)
    write_backs = [n for n in step_graph(captured("changed")).nodes if n.name.startswith("write_back")]
    assert [len(node.overwrites) for node in write_backs] == [1]


def test_a_batch_norm_is_no_update() -> None:
    step = step_graph(captured("residual"), torch.optim.Adam)
    updates = [step.nodes[n].name for n in update_nodes(step)]
    assert not any("norm" in name and "." not in name for name in updates)
    assert {"add", "add_1", "add_2"} <= set(updates), "the norms' counters"
    assert sum(name.endswith(".addcdiv_") for name in updates) == len(list(Residual().parameters()))


def test_without_an_optimizer_gradients_are_left() -> None:
    graph = captured("residual")
    assert len(step_graph(graph).outputs) == len(graph.outputs) + len(graph.gradients)
    assert len(step_graph(graph, torch.optim.Adam).outputs) == len(graph.outputs)


def test_gradients_of_inputs_are_left() -> None:
    graph = captured("inverted")
    assert len(step_graph(graph, torch.optim.Adam).outputs) == len(graph.outputs) + 1


def test_each_geometry_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[tuple[int, ...]] = []

    def counting(optimizer: OptimizerFactory, parameter: Any, gradient: Any) -> Any:
        traced.append(parameter.shape)
        return trace_update(optimizer, parameter, gradient)

    monkeypatch.setattr("monet.step.training_step.order_graph.trace_update", counting)
    step_graph(captured("residual"), torch.optim.Adam)
    assert sorted(traced) == sorted({p.shape for p in Residual().parameters()})


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [(partial(torch.optim.Adam, foreach=True), "foreach=False"), (torch.optim.LBFGS, "cannot be traced.*closure")],
)
def test_optimizers_that_cannot_be_traced(optimizer: OptimizerFactory, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        step_graph(captured("changed"), optimizer)


def test_the_whole_step_is_ordered_and_laid_out_at_its_bounds() -> None:
    step: OrderGraph = step_graph(captured("residual"), torch.optim.Adam)
    found = best_order(step)
    lifetimes = order_lifetimes(step, found.order)
    size = torch.tensor([[x.begin, x.end, x.bytes] for x in lifetimes]).numpy()
    assert max_load(size[:, 0], size[:, 1], size[:, 2]) == found.peak_bytes
    placed = layout(lifetimes)
    assert placed.arena_bytes == placed.bound_bytes == found.peak_bytes == found.bound_bytes
    assert found.peak_bytes < peak_bytes(step, step.working)


def test_a_real_network_is_ordered_and_laid_out_at_its_bounds() -> None:
    """Captured without memory for it. Neither forward nor updates decide here: weight gradients wait for each other."""

    def make() -> OrderGraph:
        import torchvision

        with FakeTensorMode():
            model = torchvision.models.video.r3d_18(weights=None)
            return step_graph(capture(model, (torch.zeros(1, 3, 16, 112, 112),)).graph, torch.optim.Adam)

    graph = with_torchvision_schemas(make)
    found = best_order(graph)
    assert found.proven and found.peak_bytes < peak_bytes(graph, range(len(graph.nodes)))
    placed = layout(order_lifetimes(graph, found.order))
    assert placed.arena_bytes == found.peak_bytes
