"""What kernels are known to ask for besides their results, as the recorder has seen it again and again.

Where a kernel is not named here, nothing is added: elementwise kernels, reductions and products ask for their results
alone, or for bytes that no peak notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monet.base.graph import Ref, Value
from monet.base.measurement import Request
from monet.ops.estimating.convolutions import convolution, convolution_requests
from monet.ops.families import dropout
from monet.ops.families.normalization.batch_norm import batch_norm_from_output
from monet.ops.fusion import loss_head
from monet.ops.offers.generic import draw, draw_again
from monet.ops.offers.implementation import Implementation
from monet.ops.strides import contiguous, same

aten = torch.ops.aten
Values = Mapping[str, Value]
_TILED = 64  # rows and columns from which on PyTorch's attention takes a CPU's tiles


def requests(run: Implementation, values: Values) -> tuple[Request, ...]:
    """Of ``run``, in order, one tick each: temporaries that last as long as it does, and results."""
    found = convolution(run, values)
    if found is not None:
        return convolution_requests(found, run, values)
    return _beside_results(run, values, _temporaries(run, values))


def gpu_requests(run: Implementation, values: Values) -> tuple[Request, ...]:
    """What a GPU's kernel in the place of ``run`` asks for, as far as that is known: its results, and of attention's
    backward pass in halves the gradient of the queries in float32, which is added up in there. cuDNN's workspaces are
    not known without the GPU."""
    rule = _GPU_RULES.get(run.call)
    return _beside_results(run, values, [] if rule is None else rule(run, values))


def _beside_results(run: Implementation, values: Values, temporaries: list[int]) -> tuple[Request, ...]:
    extra = [size for size in temporaries if size]
    made = [
        (position, values[name].storage_bytes)
        for position, name in enumerate(run.outputs)
        if name is not None and values[name].storage_bytes and not (run.overwrites is not None and position == 0)
    ]
    end = len(extra) + len(made)
    return (
        *(Request(size, tick, max(end, 1), None) for tick, size in enumerate(extra)),
        *(Request(size, len(extra) + i, None, position) for i, (position, size) in enumerate(made)),
    )


def _temporaries(run: Implementation, values: Values) -> list[int]:
    rule = _RULES.get(run.call)
    return [] if rule is None else rule(run, values)


def _tensors(run: Implementation, values: Values) -> list[Value]:
    return [values[argument.name] for argument in run.args if isinstance(argument, Ref)]


def _bytes(value: Value) -> int:
    return value.numel * value.dtype.itemsize


def _of_gradient(run: Implementation, values: Values) -> list[int]:
    """A copy of the gradient, or a mask as wide as it."""
    return [_bytes(_tensors(run, values)[0])]


def _copies(count: int) -> Callable[[Implementation, Values], list[int]]:
    """Contiguous copies of those of the first ``count`` tensors that are not."""

    def copies(run: Implementation, values: Values) -> list[int]:
        given = _tensors(run, values)[:count]
        return [_bytes(v) for v in given if not same(v.shape, v.stride, contiguous(v.shape))]

    return copies


def _scores(run: Implementation, values: Values) -> list[int]:
    """Of fused attention on the CPU: for each thread the scores of a block of rows, their maxima and sums, and the rows
    of the result, all as wide as they are added up in; in halves, the scores once more as such."""
    query, key = [v for v in _tensors(run, values) if v.dtype.is_floating_point][:2]  # a state may be before them
    block, columns = _block(query, key)
    packed = _packed(query, key)
    halves = block * (_even(columns) if packed else columns)
    return [*_of_threads(query.dtype, block * (columns + 2 + query.shape[3]), halves), *packed]


def _packed(query: Value, key: Value) -> list[int]:
    """Of fused attention in bfloat16 on a CPU with tiles (AMX): keys and values as these want them, with an even number
    of rows and columns; for each thread a block of values, and of queries where their width is odd."""
    (rows, width), length = query.shape[2:], key.shape[2]
    tiles = query.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    if not tiles or rows < _TILED or length < _TILED:
        return []
    block, columns = _block(query, key)
    heads, threads = key.shape[0] * key.shape[1], torch.get_num_threads()
    numbers = [heads * length * _even(width), heads * _even(length) * width, threads * columns * width]
    return [2 * size for size in (*numbers, threads * block * (width + 1) if width % 2 else 0)]


def _even(count: int) -> int:
    return count + count % 2


def _scores_backward(run: Implementation, values: Values) -> list[int]:
    """The gradient with the heads of a row beside each other, where it is not; for each thread the scores of a block
    and their gradients, in halves once more as such, and a sum for each row. What oneDNN's products of halves ask for
    is left out."""
    gradient, query, key = _tensors(run, values)[:3]
    shape, stride = ([numbers[i] for i in (0, 2, 1, 3)] for numbers in (gradient.shape, gradient.stride))
    copy = [] if same(shape, stride, contiguous(shape)) else [_bytes(gradient)]
    block, columns = _block(query, key)
    return [
        *copy,
        *_of_threads(query.dtype, 2 * block * columns, 2 * block * columns),
        *_of_threads(query.dtype, block, 0),
    ]


def _block(query: Value, key: Value) -> tuple[int, int]:
    """Rows and columns that a thread of fused attention on the CPU works on at a time."""
    rows = query.shape[2]
    return min(rows, 256 if rows >= 768 else 64 if rows >= 192 else 32), min(key.shape[2], 512)


def _of_threads(dtype: torch.dtype, numbers: int, halves: int) -> list[int]:
    """Bytes of so many numbers for each thread, as wide as they are added up in; and of halves, where the dtype is."""
    width = dtype.itemsize
    return [size * torch.get_num_threads() for size in (numbers * max(4, width), halves * width if width < 4 else 0)]


def _drawn(run: Implementation, values: Values) -> list[int]:
    """Of a dropout: its mask as wide as the input, and what is made although nobody reads it."""
    if run.args[0] is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return _scores(run, values)
    if run.args[0] is not dropout.dropout:
        return []
    given = next(v for v in _tensors(run, values) if v.dtype.is_floating_point)
    unread = zip((_bytes(given), given.numel), run.outputs, strict=False)
    return [_bytes(given), *(size for size, name in unread if name is None)]


def _rolled(run: Implementation, values: Values) -> list[int]:
    """One dimension after the other, each a tensor."""
    shifts = run.args[1]
    return [_bytes(_tensors(run, values)[0])] if isinstance(shifts, list | tuple) and len(shifts) > 1 else []


def _masked_rows(run: Implementation, values: Values) -> list[int]:
    """Which elements are minus infinity."""
    return [_tensors(run, values)[0].numel]


def _logits(run: Implementation, values: Values) -> list[int]:
    """Of a loss head: the logits of a chunk."""
    return [loss_head.logits_bytes(run, values)]


_RULES: dict[Callable[..., Any], Callable[[Implementation, Values], list[int]]] = {
    aten.native_batch_norm_backward.default: _of_gradient,
    batch_norm_from_output: _of_gradient,
    aten.native_layer_norm.default: _copies(1),
    aten.native_layer_norm_backward.default: _copies(2),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _scores_backward,
    dropout.masked: _of_gradient,
    dropout.masked_: _of_gradient,
    draw: _drawn,
    draw_again: _drawn,
    aten.roll.default: _rolled,
    loss_head.loss_head: _logits,
    aten._safe_softmax.default: _masked_rows,
}


def _gradient_of_queries(run: Implementation, values: Values) -> list[int]:
    """As FlashAttention-2 has it, and a number for each of its rows."""
    query = _tensors(run, values)[1]
    return [4 * query.numel, 4 * query.numel // query.shape[-1]] if query.dtype.itemsize < 4 else []


_GPU_RULES: dict[Callable[..., Any], Callable[[Implementation, Values], list[int]]] = {
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _gradient_of_queries,
    aten.roll.default: _rolled,
    loss_head.loss_head: _logits,
    aten._safe_softmax.default: _masked_rows,
}
