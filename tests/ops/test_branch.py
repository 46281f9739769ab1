"""Gradients of straight pieces from bits, on every 16-bit number and on special float32 ones; kernels in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from all_numbers import DTYPES, every, same

from monet.base.graph import Operator, Ref
from monet.ops.families.activation.branch import branch
from monet.ops.kernels import bits
from monet.ops.offers import generic

aten = torch.ops.aten

# Forward, its numbers, backward, the backward's numbers.
CASES: list[tuple[Callable[..., Any], tuple[float, ...], Callable[..., Any], tuple[Any, ...]]] = [
    (aten.relu.default, (), aten.threshold_backward.default, (0,)),
    (aten.threshold.default, (0.1, -0.3), aten.threshold_backward.default, (0.1,)),
    (aten.threshold.default, (0.1, 0.1), aten.threshold_backward.default, (0.1,)),
    (aten.threshold.default, (-0.1, 20.0), aten.threshold_backward.default, (-0.1,)),
    (aten.hardtanh.default, (), aten.hardtanh_backward.default, (-1.0, 1.0)),
    (aten.hardtanh.default, (0.0, 6.0), aten.hardtanh_backward.default, (0.0, 6.0)),
    (aten.hardtanh.default, (-0.7, 0.3), aten.hardtanh_backward.default, (-0.7, 0.3)),
    (aten.hardtanh.default, (-0.3, 0.7), aten.hardtanh_backward.default, (-0.3, 0.7)),
    (aten.leaky_relu.default, (), aten.leaky_relu_backward.default, (0.01, False)),
    (aten.leaky_relu.default, (0.0,), aten.leaky_relu_backward.default, (0.0, False)),
    (aten.leaky_relu.default, (-0.3,), aten.leaky_relu_backward.default, (-0.3, False)),
    (aten.hardsigmoid.default, (), aten.hardsigmoid_backward.default, ()),
]


def _operator(target: Callable[..., Any], args: tuple[float, ...]) -> Operator:
    return Operator("f", target, (Ref("x"), *args), (), ("y",), True, False, False, "")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{case[1]}")
def test_bits_give_the_kernels_gradient(case: Any, dtype: torch.dtype) -> None:
    forward, numbers, backward, told = case
    x = every(dtype)
    if forward is aten.hardtanh.default:  # aten's own result for NaN depends on where it is
        x = x[~x.isnan()]
    generator = torch.Generator().manual_seed(2)
    gradient = torch.randn(x.shape, generator=generator).to(dtype)
    way = branch(_operator(forward, numbers), dtype)
    assert way is not None
    saved = forward(x, *numbers) if forward is aten.relu.default else x
    expected = backward(gradient, saved, *told)
    ends = {"input": (way.low, way.high)}
    if way.of_output is not None:
        ends["output"] = way.of_output
    for read, (low, high) in ends.items():
        made = bits.inside_bits(forward(x, *numbers) if read == "output" else x, low, high, way.nan, x.stride())
        assert same(bits.branch_gradient(gradient, made, way.inside, way.outside, x.stride()), expected), read


def test_where_the_output_does_not_tell() -> None:
    """Bounds that bfloat16 does not have, a slope below 0, a value above the threshold, one number of hardsigmoid's."""
    told = {
        (f"{target.name()}{args}", dtype): branch(_operator(target, args), dtype).of_output is not None  # type: ignore
        for target, args, _, _ in CASES
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert {key for key, value in told.items() if not value} == {
        ("aten::threshold(-0.1, 20.0)", torch.float32),
        ("aten::threshold(-0.1, 20.0)", torch.bfloat16),
        ("aten::threshold(0.1, 0.1)", torch.bfloat16),
        ("aten::hardtanh(-0.7, 0.3)", torch.bfloat16),
        ("aten::hardtanh(-0.3, 0.7)", torch.bfloat16),
        ("aten::leaky_relu(-0.3,)", torch.float32),
        ("aten::leaky_relu(-0.3,)", torch.bfloat16),
        ("aten::hardsigmoid()", torch.float32),
    }
    at = torch.tensor([3.0 - 2.0**-22])
    assert aten.hardsigmoid(at) == 1.0 and aten.hardsigmoid_backward(torch.ones(1), at) > 0.0


# In place → shapes: rows around vector widths, and a dimension that is not the last.
ROWS = [(3, n) for n in (1, 7, 8, 9, 15, 16, 17, 31, 33, 67, 255, 257, 1025)] + [(2, 19, 7), (2, 65, 17)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", [aten._softmax.default, aten._log_softmax.default])
def test_softmax_and_its_gradient_in_place(target: Callable[..., Any], dtype: torch.dtype) -> None:
    backward = {
        aten._softmax.default: aten._softmax_backward_data.default,
        aten._log_softmax.default: aten._log_softmax_backward_data.default,
    }[target]  # type: ignore[index]
    generator = torch.Generator().manual_seed(0)
    for shape in ROWS:
        x, gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        y = target(x, 1, False)
        expected = backward(gradient, y, 1, dtype)
        overload, keyword = generic.INTO[target]
        overload(x, 1, False, **{keyword: x})
        assert same(x, y), shape
        overload, keyword = generic.GRADIENT_IN_PLACE[backward]
        overload(gradient, y, 1, dtype, **{keyword: gradient})
        assert same(gradient, expected), shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_in_place_overload_runs_the_same_kernel(dtype: torch.dtype) -> None:
    """On contiguous and transposed tensors of sizes around vector widths."""
    numbers: dict[Any, tuple[Any, ...]] = {
        aten.threshold.default: (0.1, 0.0), aten.leaky_relu.default: (0.2,), aten.pow.Tensor_Scalar: (3,),
        aten.clamp.default: (-0.3, 0.4), aten.clamp_min.default: (0.1,), aten.clamp_max.default: (0.1,),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for n in (1, 7, 33, 1000):
        for transposed in (False, True):
            x, other = (torch.rand(n, 5, generator=generator).to(dtype) + 0.1 for _ in range(2))
            x, other = (x.t(), other.t()) if transposed else (x, other)
            tensors = _tensors(other, generator)
            for target, overload in generic.IN_PLACE.items():
                args: tuple[Any, ...] = numbers.get(target, tensors.get(target, ()))
                if target.overloadpacket in (aten.add, aten.sub, aten.mul, aten.div):  # type: ignore[attr-defined]
                    args = (other,) if target._overloadname == "Tensor" else (0.7,)  # type: ignore[attr-defined]
                expected, given = target(x, *args), x.clone()
                assert overload(given, *args) is given
                assert torch.equal(given, expected), (target, n)
                if target in generic.COMMUTE:
                    given = other.clone()
                    assert torch.equal(overload(given, x), expected)
            for target, out in generic.INTO_OTHER.items():
                given = other.clone()
                if target is aten.where.self:
                    assert torch.equal(out(*tensors[target], given, x, out=given), target(*tensors[target], other, x))
                else:
                    assert torch.equal(out(x, given, out=given), target(x, other)), target


def _tensors(other: torch.Tensor, generator: torch.Generator) -> dict[Any, tuple[Any, ...]]:
    """What follows the tensor that is overwritten; of ``where``, the mask."""
    size = other.shape[0]
    few = torch.randint(size, (3,), generator=generator)
    rows, part = torch.randint(size, other.shape, generator=generator), other[few].contiguous()
    return {
        aten.masked_fill.Scalar: (other < 0.5, 0.5),
        aten.masked_fill.Tensor: (other < 0.5, torch.tensor(0.25, dtype=other.dtype)),
        aten.masked_scatter.default: (other < 0.5, other),
        aten.copy.default: (other,),
        aten.index_put.default: ([few], part, True),
        aten.index_add.default: (0, few, part),
        aten.index_copy.default: (0, few.unique(), part[: len(few.unique())]),
        aten.index_fill.int_Scalar: (0, few, 0.5),
        aten.scatter.src: (0, rows[:1], other),
        aten.scatter.value: (0, rows, 0.5),
        aten.scatter_add.default: (0, rows, other),
        aten.scatter_reduce.two: (0, rows, other, "sum"),
        aten.where.self: (other < 0.5,),
    }
