"""Operators that are said to read only an argument's shape: NaN in its place changes nothing."""

from __future__ import annotations

import math

import torch
from evaluation import evaluate

from monet.capture import capture
from monet.graph import Operator, Ref
from monet.ops.catalogue import catalogue
from monet.ops.registry import RECORDS
from monet.ops.shape import SHAPE_ONLY, stand_in


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
