"""Operators that are said to read only an argument's shape: NaN in its place changes nothing."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from evaluation import evaluate

from monet.base.graph import INPUT, Operator, Ref
from monet.capture import capture
from monet.ops.catalogue import catalogue
from monet.ops.families.convolution import chunks
from monet.ops.kernels.stand_in import stand_in
from monet.ops.offers.shape_only import SHAPE_ONLY
from monet.ops.registry import RECORDS


def _poisoned(op: Operator, env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The operator's aten kernel on its arguments, those of which it reads only the shape full of NaN."""

    def real(argument: object, position: int) -> object:
        if isinstance(argument, Ref):
            tensor = env[argument.name]
            if position not in SHAPE_ONLY[op.target]:
                return tensor
            poisoned = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            return poisoned.fill_(math.nan if tensor.is_floating_point() else 1)
        return argument

    with torch.no_grad():
        result = op.target(*(real(a, i) for i, a in enumerate(op.args)), **dict(op.kwargs))
    return [result] if op.single else list(result)


@pytest.mark.slow
def test_values_of_such_arguments_do_not_matter() -> None:
    """Of every operator in the table, on the samples of the records."""
    seen = set()
    for record in RECORDS:
        if not {*record.forward_targets, *record.backward_targets} & SHAPE_ONLY.keys():
            continue
        for sample in record.samples:
            for dtype in sample.dtypes:
                module, inputs = sample.module(dtype), sample.inputs(dtype)
                captured = capture(module, inputs)
                torch.manual_seed(7)
                env = evaluate(catalogue(captured.graph), captured, module, list(inputs))
                for op in (*captured.graph.forward, *captured.graph.backward):
                    if op.target not in SHAPE_ONLY:
                        continue
                    seen.add(op.target)
                    for name, result in zip(op.outputs, _poisoned(op, env), strict=True):
                        if name is not None:
                            assert torch.equal(result, env[name]), f"{sample.name}: {op.target}"
    assert seen == SHAPE_ONLY.keys()


def test_stand_ins_take_no_memory() -> None:
    """Of any size, with the strides that were asked for; reading gives zeros."""
    before = _resident_bytes()
    x = stand_in((64, 256, 256, 256), (1 << 24, 1, 1 << 16, 1 << 8), torch.float32)
    assert x.is_contiguous(memory_format=torch.channels_last) and x.shape == (64, 256, 256, 256)
    assert x[3, 5].sum() == 0 and x[-1, -1, -1, -1] == 0
    assert _resident_bytes() - before < 1 << 26
    larger = stand_in((1 << 37,), (1,), torch.bfloat16)
    assert larger[-1] == 0 and x[0, 0, 0, 0] == 0
    assert stand_in((), (), torch.int64).item() == 0 and stand_in((0, 3), (3, 1), torch.bool).numel() == 0


def _resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_input_gradient_on_another_device(form: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution's input gradient on a device where nothing can stand in without memory: on meta tensors, where
    torch checks devices and shapes as elsewhere; its values are eager's on the CPU."""
    monkeypatch.setattr(chunks, "stand_in", None)  # is of the CPU
    module = torch.nn.Conv2d(3, 4, 3, 2, 1, bias=False)
    x = torch.randn(2, 3, 9, 8).contiguous(memory_format=form).requires_grad_()
    graph = capture(module, (x,)).graph
    away = {name: replace(value, device=torch.device("meta")) for name, value in graph.values.items()}
    offered = catalogue(replace(graph, values=away)).backward
    of_input = graph.gradients[next(source.value for source in graph.sources if source.kind == INPUT)]
    (op,) = (op for op in graph.backward if offered.get(op.name) and op.outputs[0] == of_input)
    (found,) = offered[op.name].values()
    real = {name: torch.randn(v.shape).as_strided(v.shape, v.stride) for name, v in graph.values.items()}

    def result(device: str) -> torch.Tensor:
        args = [real[a.name].to(device) if isinstance(a, Ref) else a for a in found.args]
        made = found.call(*args, **dict(found.kwargs))
        tensor: torch.Tensor = made if found.single else made[0]
        return tensor

    value = graph.values[str(op.outputs[0])]
    assert result("meta").device.type == "meta"
    for device in ("meta", "cpu"):
        assert (tuple(result(device).shape), result(device).stride()) == (value.shape, value.stride)
    expected = op.target(*(real[a.name] if isinstance(a, Ref) else a for a in op.args))[0]
    assert torch.equal(result("cpu"), expected)
    # Eager's kernel decides on its layout by the input's: where that says something, it is read.
    assert (op.args[1].name in found.inputs()) == (form is torch.channels_last)


LIMITED = """
import resource
import torch
from monet.errors import MonetError
from monet.ops.families.convolution.chunks import input_gradient
from monet.ops.kernels.stand_in import stand_in

def limit(room):
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room, resource.RLIM_INFINITY))

torch.set_num_threads(1)
limit(7 << 29)  # 3.5 GiB
assert stand_in((2, 3), (3, 1), torch.float32).sum() == 0
gradient, weight = torch.ones(2, 4, 5, 5), torch.ones(4, 3, 1, 1)
geometry = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
found = input_gradient(gradient, weight, geometry, [2, 3, 5, 5], [75, 25, 5, 1])
assert torch.equal(found, torch.full((2, 3, 5, 5), 4.0))
assert stand_in(((2 << 30) + 1,), (1,), torch.uint8)[-1] == 0  # the next power of two would be too much
try:
    stand_in((1 << 37,), (1,), torch.float32)
except MonetError as error:
    print(error)
limit(1 << 29)
assert stand_in((1 << 28,), (1,), torch.uint8)[-1] == 0  # less than a process starts with
"""


def test_limited_address_space() -> None:
    """As ``ulimit -v`` does on shared machines: what fits is given, what does not is an error with advice."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"refuses {4 << 37} bytes of address space" in done.stdout and "ulimit -v unlimited" in done.stdout
