"""How results of the CPU's kernels look, where torch's own description of them differs.

A trace asks how an operator's results look. For batch, layer and group norm torch answers from decompositions that are
made for compilers: saved statistics in the input's dtype although the kernel keeps them in float32 where the parameters
are, running statistics in float32 although they are bfloat16, gradients in the strides of the incoming one although the
kernel takes the input's, or in the parameters' dtype. Gradients of activations have the strides of what the kernel
reads first, gradient or saved tensor, and in a decomposition of another one. Kernels of losses, softmax, GLU and
others make contiguous results of any input, decompositions results in its format. A plan needs the kernels' own.

Views of tensors with a dimension of one element get another step there, on every device, which moves no element; but
oneDNN takes (49, 1, 7, 1) of a (2, 1, 7, 7) for channels-last and (49, 49, 7, 1) not, and asks for other memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._decomp import decomposition_table, meta_table
from torch._dispatch.python import no_python_dispatcher
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
Results = tuple[torch.Tensor | None, ...]

_HALVES = (torch.bfloat16, torch.float16)


def _like(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, or channels-last where x is."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _statistics(x: torch.Tensor, parameters: tuple[torch.Tensor | None, ...]) -> torch.dtype:
    mixed = x.dtype in _HALVES and any(p is not None and p.dtype is torch.float32 for p in parameters)
    return torch.float32 if mixed else x.dtype


def _batch_norm(
    x: torch.Tensor, parameters: tuple[torch.Tensor | None, ...], training: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    size, dtype = x.shape[1] if training else 0, _statistics(x, parameters)
    return _like(x), x.new_empty(size, dtype=dtype), x.new_empty(size, dtype=dtype)


def _plain(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Results:
    return _batch_norm(x, (weight, bias, mean, var), training)


def _no_statistics(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Results:
    return _batch_norm(x, (weight, bias), training)


def _no_training(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Results:
    return _batch_norm(x, (weight, bias, mean, var), False)


def _functional(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Results:
    found = _batch_norm(x, (weight, bias, mean, var), training)
    return (*found, torch.empty_like(mean), torch.empty_like(var))


def _batch_norm_backward(
    gradient: Any,
    x: Any,
    weight: Any,
    mean: Any,
    var: Any,
    saved: Any,
    inverse: Any,
    train: bool,
    eps: float,
    mask: Any,
) -> Results:
    like = x if weight is None else weight
    of_parameter = [like.new_empty(x.shape[1]) if wanted else None for wanted in mask[1:]]
    return (_like(x) if mask[0] else None, *of_parameter)


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Results:
    outer = x.dim() - len(shape)
    sizes, dtype = [*x.shape[:outer], *([1] * len(shape))], _statistics(x, (weight, bias))
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, x.new_empty(sizes, dtype=dtype), x.new_empty(sizes, dtype=dtype)


def _group_norm(
    x: Any, weight: Any, bias: Any, images: int, channels: int, cells: int, groups: int, eps: float
) -> Results:
    dtype = _statistics(x, (weight, bias))
    return _like(x), x.new_empty((images, groups), dtype=dtype), x.new_empty((images, groups), dtype=dtype)


def _group_norm_backward(
    gradient: Any, x: Any, mean: Any, rstd: Any, weight: Any, images: int, channels: int, cells: int, groups: int,
    mask: Any,
) -> Results:  # fmt: skip
    like = x if weight is None else weight
    of_parameter = [like.new_empty(channels) if wanted else None for wanted in mask[1:]]
    return (_like(x) if mask[0] else None, *of_parameter)


def _elementwise(gradient: Any, x: Any, *numbers: Any, **named: Any) -> Any:
    """An iterator over the gradient and what was saved, in this order, as an addition is."""
    return torch.add(gradient, x)


def _saved_first(gradient: Any, x: Any, *numbers: Any, **named: Any) -> Any:
    return torch.add(x, gradient)


def _elu_backward(gradient: Any, alpha: Any, scale: Any, input_scale: Any, of_output: Any, saved: Any) -> Any:
    return torch.add(gradient, saved)


def _contiguous(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _layer_norm_backward(
    gradient: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Results:
    of_parameter = [
        _contiguous(p) if wanted and p is not None else None for p, wanted in zip((weight, bias), mask[1:], strict=True)
    ]
    return (_contiguous(x) if mask[0] else None, *of_parameter)


def _loss_backward(gradient: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Zeros of the input's shape, written through."""
    return _contiguous(x)


def _cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    return torch.empty_like(x) if reduction == 0 else x.new_empty(())


def _cross_entropy_backward(gradient: Any, x: Any, *rest: Any, **named: Any) -> Any:
    return torch.empty_like(x)


def _log_sigmoid(x: Any) -> Any:
    return _contiguous(x), _contiguous(x)


def _rrelu_backward(
    gradient: Any, x: Any, noise: Any, lower: float, upper: float, training: bool, of_output: bool
) -> Any:
    """The noise times the gradient, or a leaky ReLU's gradient where there is no noise."""
    return torch.mul(noise, gradient) if training and upper - lower > 1e-6 else torch.add(x, gradient)


def _glu_backward(gradient: Any, x: Any, dim: int) -> Any:
    return _contiguous(x)


def _softmax_backward(gradient: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    return gradient.new_empty(gradient.shape, dtype=dtype)


def _dropout_backward(gradient: Any, mask: Any, scale: float) -> Any:
    return torch.mul(gradient, mask)


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    """Two parts put together, one dimension after the other; of the flattened tensor without dimensions."""
    shifts, dims = ([n] if isinstance(n, int) else list(n) for n in (shifts, dims))
    if len(dims) != 1 or len(shifts) != 1:
        if not dims and len(shifts) == 1:
            return _contiguous(x)
        if len(shifts) != len(dims):
            raise RuntimeError(f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}")
        return _roll(_roll(x, shifts[:1], dims[:1]), shifts[1:], dims[1:])
    if x.numel() == 0:
        return torch.empty_like(x)
    size = x.shape[dims[0]]
    start = -shifts[0] % size
    return torch.cat([x.narrow(dims[0], start, size - start), x.narrow(dims[0], 0, start)], dims[0])


def _padded(rank: int, *, reflects: bool) -> Callable[[Any, Any], Any]:
    """Channels-last where the input is, of which torch 2.11 knows nothing in images, and no version in volumes: one
    without batch has four dimensions, which are taken for a batch of images."""

    def padded(x: Any, padding: Any) -> Any:
        pairs = [(padding[i], padding[i + 1]) for i in range(2 * rank - 2, -1, -2)]  # the last dimension's are first
        sides = list(zip(x.shape[-rank:], pairs, strict=True))
        if reflects and any(max(pair) >= n for n, pair in sides):
            raise RuntimeError(f"reflection padding of {list(padding)} is more than an input of {list(x.shape)} has")
        sizes = [*x.shape[:-rank], *(n + sum(pair) for n, pair in sides)]
        return x.new_empty(sizes).contiguous(memory_format=suggest_memory_format(x))

    return padded


def _attention(
    query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *, attn_mask: Any = None,
    scale: Any = None,
) -> Results:  # fmt: skip
    """The logarithms of sums as wide as they are added up in, where torch 2.11 says float32."""
    batch, heads, rows, _ = query.shape
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return torch.empty_like(query), query.new_empty((batch, rows, heads), dtype=dtype).transpose(1, 2)


def _unpool(x: Any, indices: Any, size: Any) -> Any:
    return x.new_empty([*x.shape[:-2], *size]).contiguous(memory_format=suggest_memory_format(x))


# Operator → its results, and which argument is its input.
_RULES: dict[Any, tuple[Callable[..., Any], int]] = {
    aten.native_batch_norm.default: (_plain, 0),
    aten._native_batch_norm_legit.default: (_plain, 0),
    aten._native_batch_norm_legit.no_stats: (_no_statistics, 0),
    aten._native_batch_norm_legit_no_training.default: (_no_training, 0),
    aten._native_batch_norm_legit_functional.default: (_functional, 0),
    aten.native_batch_norm_backward.default: (_batch_norm_backward, 1),
    aten.native_layer_norm.default: (_layer_norm, 0),
    aten.native_group_norm.default: (_group_norm, 0),
    aten.native_group_norm_backward.default: (_group_norm_backward, 1),
    aten.threshold_backward.default: (_saved_first, 0),
    aten.hardtanh_backward.default: (_elementwise, 0),
    aten.leaky_relu_backward.default: (_saved_first, 0),
    aten.hardsigmoid_backward.default: (_elementwise, 0),
    aten.hardswish_backward.default: (_elementwise, 0),
    aten.sigmoid_backward.default: (_elementwise, 0),
    aten.tanh_backward.default: (_elementwise, 0),
    aten.silu_backward.default: (_elementwise, 0),
    aten.mish_backward.default: (_elementwise, 0),
    aten.gelu_backward.default: (_elementwise, 0),
    aten.softplus_backward.default: (_elementwise, 0),
    aten.elu_backward.default: (_elu_backward, 0),
    aten.native_layer_norm_backward.default: (_layer_norm_backward, 1),
    aten.mse_loss_backward.default: (_loss_backward, 1),
    aten.smooth_l1_loss_backward.default: (_loss_backward, 1),
    aten.huber_loss_backward.default: (_loss_backward, 1),
    aten.binary_cross_entropy.default: (_cross_entropy, 0),
    aten.binary_cross_entropy_backward.default: (_cross_entropy_backward, 1),
    aten.log_sigmoid_forward.default: (_log_sigmoid, 0),
    aten.rrelu_with_noise_backward.default: (_rrelu_backward, 1),
    aten.glu_backward.default: (_glu_backward, 1),
    aten._softmax_backward_data.default: (_softmax_backward, 0),
    aten._log_softmax_backward_data.default: (_softmax_backward, 0),
    aten.native_dropout_backward.default: (_dropout_backward, 0),
    aten.roll.default: (_roll, 0),
    aten.max_unpool2d.default: (_unpool, 0),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (_attention, 0),
    aten.reflection_pad2d.default: (_padded(2, reflects=True), 0),
    aten.reflection_pad3d.default: (_padded(3, reflects=True), 0),
    aten.replication_pad2d.default: (_padded(2, reflects=False), 0),
    aten.replication_pad3d.default: (_padded(3, reflects=False), 0),
}


# Described without the CPU's kernels in mind, wherever the tensor is.
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default)
_TORCHS_OWN = {target: op_implementations_dict[target] for target in _VIEWS if target in op_implementations_dict}


def _viewed(mode: Any, target: Any, x: Any, *args: Any, **named: Any) -> Any:
    """With the strides that the kernel gives, which runs on a tensor without memory."""
    sizes = (*x.shape, *x.stride(), *pytree.tree_leaves(args)) if x.layout is torch.strided else (None,)
    if not all(isinstance(size, int) for size in sizes):
        own = _TORCHS_OWN.get(target)
        return NotImplemented if own is None else own(mode, target, x, *args, **named)
    with no_python_dispatcher():  # it would ask the decomposition
        of_kernel = target(torch.empty_strided(x.shape, x.stride(), device="meta"), *args, **named)
    with mode:
        return torch.as_strided(x, of_kernel.shape, of_kernel.stride())


def _described(mode: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    rule, position = _RULES[target]
    with mode:
        if args[position].device.type == "cpu":
            return rule(*args, **kwargs)
        other = decomposition_table.get(target)
        return NotImplemented if other is None else other(*args, **kwargs)


@contextmanager
def kernels_own_geometry() -> Iterator[None]:
    """A context in which fake tensors of the CPU look as these kernels make them."""
    FakeTensorMode.cache_clear()  # answers that torch keeps across modes, given before and in here
    # Being in the one table keeps torch from decomposing the operator, so that it asks the other.
    told = (*_RULES, *_VIEWS)
    before = [(table, {t: table[t] for t in told if t in table}) for table in (op_implementations_dict, meta_table)]
    for target in _RULES:
        op_implementations_dict[target] = _described
        meta_table[target] = _described
    for target in _VIEWS:
        op_implementations_dict[target] = _viewed
    try:
        yield
    finally:
        for table, old in before:
            for target in told:
                table.pop(target, None)
            table.update(old)
        FakeTensorMode.cache_clear()
