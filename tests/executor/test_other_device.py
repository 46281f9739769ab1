"""Results on another device than the step's: a GPU's operators return seeds and generator states in CPU memory.

Here the step is the CPU's, and the other device is torch's ``meta``, whose tensors have no memory.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import monet
from monet.base.graph import INPUT, PARAMETER, Graph, Source, Value
from monet.pipeline.lowering import fixed_bytes

pytestmark = pytest.mark.usefixtures("hasty_orders")


SEEN: list[str] = []
"""Where ``seeded_backward`` finds its seed."""
_library = torch.library.Library("monet_tests", "DEF")
_library.define("seeded(Tensor x) -> (Tensor, Tensor)", tags=[torch.Tag.nondeterministic_seeded])
_library.define("seeded_backward(Tensor gradient, Tensor x, Tensor seed) -> Tensor")
seeded = torch.ops.monet_tests.seeded


def _seeded(x: Tensor) -> tuple[Tensor, Tensor]:
    """As fused attention on a GPU: a result, and a seed on another device."""
    return x.sin() + 1, torch.empty(2, dtype=torch.int64, device="meta")


def _seeded_backward(gradient: Tensor, x: Tensor, seed: Tensor) -> Tensor:
    if x.device.type == "cpu":
        SEEN.append(seed.device.type)
    return gradient * x.cos()


for _device in ("CPU", "Meta"):
    _library.impl("seeded", _seeded, _device)
    _library.impl("seeded_backward", _seeded_backward, _device)


def _keep(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], output[1])


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
    return torch.ops.monet_tests.seeded_backward(gradient, *ctx.saved_tensors)


torch.library.register_autograd("monet_tests::seeded", _backward, setup_context=_keep, lib=_library)


class Seeded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = seeded(self.second(seeded(self.first(x))[0]))[0]
        return found


@pytest.mark.parametrize("budget", ["100%", "90%"])
def test_a_seed_on_another_device_is_in_no_memory_of_the_step(budget: str) -> None:
    torch.manual_seed(0)
    model, x = Seeded(), torch.randn(512, 64)
    eager = copy.deepcopy(model)
    plan = monet.plan(model, (x,), budget=budget, cache=False)
    assert not any(buffer.value.endswith("seed") for buffer in plan.buffers)
    planned = monet.MonetModule(model, plan)
    SEEN.clear()
    for module in (planned, eager):
        module(x).square().sum().backward()
    assert SEEN == ["meta"] * 4
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(dict(planned.named_parameters())[name].grad, parameter.grad, rtol=0, atol=0)
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0


def test_scalars_of_the_cpu_are_no_memory_of_a_gpus_step() -> None:
    """As Adam's number of steps: the first value of the graph, even."""
    devices = {"count": "cpu", "weight": "cuda:1", "x": "cuda:1"}
    values = {
        name: Value(name, (4,), (1,), 0, torch.float32, torch.device(device), name, 16)
        for name, device in devices.items()
    }
    sources = (
        Source("count", INPUT, "0", False), Source("weight", PARAMETER, "weight", True), Source("x", INPUT, "1", False)
    )  # fmt: skip
    graph = Graph(values, sources, (), (), ("x", "count"), (None, None), {}, {})
    assert graph.device == torch.device("cuda:1")
    found = fixed_bytes(graph)
    assert (found["parameters"], found["inputs"], found["outputs"]) == (16, 16, 16)
