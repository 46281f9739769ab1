"""What a trace is told of kernels against what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from monet.capture.kernel_geometry import kernels_own_geometry

aten = torch.ops.aten
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
]
FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
}
ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2), (1, 2, 3, 0)]  # of four dimensions in memory


def _look(results: Any) -> list[Any]:
    results = [results] if isinstance(results, torch.Tensor) else results
    return [None if r is None else (r.dtype, r.shape, r.stride()) for r in results]


def _compare(target: Callable[..., Any], *args: Any) -> Any:
    real = target(*args)
    with kernels_own_geometry():
        mode = FakeTensorMode()
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        with mode:
            found = target(*fakes)
    assert _look(found) == _look(real), target
    return real


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("dtype", "of_weight"), DTYPES)
def test_results_look_as_the_kernels_make_them(dtype: torch.dtype, of_weight: torch.dtype, layout: str) -> None:
    x = FORMATS[layout](torch.randn(4, 6, 7, 7).to(dtype))
    w, b, mean = (torch.randn(6).to(of_weight) for _ in range(3))
    var, gradient = torch.rand(6).to(of_weight) + 0.5, torch.randn(4, 6, 7, 7).to(dtype)
    _compare(aten._native_batch_norm_legit_no_training.default, x, w, b, mean, var, 0.1, 1e-5)
    _compare(aten._native_batch_norm_legit_functional.default, x, w, b, mean, var, True, 0.1, 1e-5)
    _compare(aten._native_batch_norm_legit.no_stats, x, None, None, True, 0.1, 1e-5)
    _compare(aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)
    for training in (True, False):
        _compare(aten.native_batch_norm.default, x, None, None, mean, var, training, 0.1, 1e-5)
        _, saved, inverse = _compare(aten.native_batch_norm.default, x, w, b, mean, var, training, 0.1, 1e-5)
        for g in (gradient, gradient.contiguous(memory_format=torch.channels_last)):
            for scale, mask in ((w, [True] * 3), (None, [True, False, False]), (w, [False, True, True])):
                args = (g, x, scale, mean, var, saved, inverse, training, 1e-5, mask)
                _compare(aten.native_batch_norm_backward.default, *args)
    x = x.contiguous() if layout == "transposed" else x  # as torch's group_norm does before it
    _, average, rstd = _compare(aten.native_group_norm.default, x, w, b, 4, 6, 49, 2, 1e-5)
    _compare(aten.native_group_norm_backward.default, gradient, x, average, rstd, w, 4, 6, 49, 2, [True] * 3)
    w, b = (torch.randn(7, 7).to(of_weight) for _ in range(2))
    _compare(aten.native_layer_norm.default, x, [7, 7], w, b, 1e-5)
    _compare(aten.native_layer_norm.default, x, [7, 7], None, None, 1e-5)


ACTIVATIONS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (aten.threshold_backward.default, (0,)),
    (aten.hardtanh_backward.default, (-1.0, 1.0)),
    (aten.leaky_relu_backward.default, (0.1, False)),
    (aten.hardsigmoid_backward.default, ()),
    (aten.hardswish_backward.default, ()),
    (aten.sigmoid_backward.default, ()),
    (aten.tanh_backward.default, ()),
    (aten.silu_backward.default, ()),
    (aten.mish_backward.default, ()),
    (aten.gelu_backward.default, ()),
    (aten.softplus_backward.default, (1.0, 20.0)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of_gradient", FORMATS)
@pytest.mark.parametrize("of_input", FORMATS)
def test_gradients_of_activations_look_as_the_kernels_make_them(
    of_gradient: str, of_input: str, dtype: torch.dtype
) -> None:
    g, x = FORMATS[of_gradient](torch.randn(4, 6, 7, 7).to(dtype)), FORMATS[of_input](torch.randn(4, 6, 7, 7).to(dtype))
    for target, numbers in ACTIVATIONS:
        _compare(target, g, x, *numbers)
    _compare(aten.elu_backward.default, g, 1.0, 1, 1, False, x)


def _ordered(order: tuple[int, ...], *shape: int) -> torch.Tensor:
    """Noise in (0, 1) whose dimensions lie in memory in this order."""
    x = torch.rand([shape[i] for i in order]) * 0.9 + 0.05
    return x.permute([order.index(i) for i in range(len(order))])


@pytest.mark.parametrize("of_gradient", ORDERS)
@pytest.mark.parametrize("of_input", ORDERS)
@pytest.mark.sampled(3)
def test_other_results_look_as_the_kernels_make_them(of_input: tuple[int, ...], of_gradient: tuple[int, ...]) -> None:
    x, shape = _ordered(of_input, 4, 6, 5, 3), (4, 6, 5, 3)
    g, contiguous = _ordered(of_gradient, *shape), torch.rand(shape)
    for target in (contiguous, x, g):
        for reduction in range(3):
            for incoming in (g,) if reduction == 0 else (torch.tensor(1.0),):
                _compare(aten.mse_loss_backward.default, incoming, x, target, reduction)
                _compare(aten.smooth_l1_loss_backward.default, incoming, x, target, reduction, 1.0)
                _compare(aten.huber_loss_backward.default, incoming, x, target, reduction, 1.0)
                _compare(aten.binary_cross_entropy_backward.default, incoming, x, target, None, reduction)
    for loss in (aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy):
        _compare(loss.default, x, g, *([None] if loss is aten.binary_cross_entropy else []), 0)
    _, buffer = _compare(aten.log_sigmoid_forward.default, x)
    _compare(aten.log_sigmoid_backward.default, g, x, buffer)
    for noise in (contiguous, x):
        for training in (True, False):
            _compare(aten.rrelu_with_noise_backward.default, g, x, noise, 0.1, 0.3, training, False)
    for dim in (0, 1, 2, 3, -1):
        if shape[dim] % 2 == 0:
            _compare(aten.glu.default, x, dim)
            half = [n // 2 if i == dim else n for i, n in enumerate(shape)]
            _compare(aten.glu_backward.default, _ordered(of_gradient, *half), x, dim)
        for softmax in (aten._softmax, aten._log_softmax):
            _compare(softmax.default, x, dim, False)
        for softmax in (aten._softmax_backward_data, aten._log_softmax_backward_data):
            _compare(softmax.default, g, x, dim, torch.float32)
        for shift in (1, -2, 0, 11):
            _compare(aten.roll.default, x, [shift], [dim])
    _compare(aten.roll.default, x, [1, 2], [1, 3])
    _compare(aten.roll.default, x, [3])
    _compare(aten.native_dropout_backward.default, g, x > 0.5, 1.25)
    for pad in (aten.reflection_pad3d, aten.replication_pad3d):
        _compare(pad.default, x, [1, 1, 2, 1, 0, 1])
        _compare(pad.default, x.unsqueeze(0), [1, 1, 2, 1, 0, 1])
        _compare(pad.default, x.unsqueeze(1), [1, 1, 2, 1, 0, 1])
    w, b = torch.rand(3), torch.rand(3)
    _, mean, rstd = _compare(aten.native_layer_norm.default, x, [3], w, b, 1e-5)
    for mask in ([True] * 3, [True, False, False], [False, True, True]):
        _compare(aten.native_layer_norm_backward.default, g, x, [3], mean, rstd, w, b, mask)
    _compare(aten.native_layer_norm_backward.default, g, x, [3], mean, rstd, None, None, [True, False, False])


VIEWED = [
    ((2, 1, 49), (49, 1, 1), (2, 1, 7, 7)),  # one channel that lies between others' pixels, as after a transpose
    ((2, 1, 49), (49, 49, 1), (2, 1, 7, 7)),
    ((1, 6, 4), (24, 4, 1), (6, 1, 2, 2)),
    ((1, 4, 1, 6), (24, 1, 7, 4), (4, 1, 1, 2, 3)),
    ((3, 1, 1), (1, 5, 9), (3, 1)),
    ((2, 3, 1), (0, 1, 3), (2, 1, 3)),
    ((0, 1, 3), (3, 3, 1), (0, 3)),
]


@pytest.mark.parametrize(("shape", "stride", "wanted"), VIEWED)
def test_views_have_the_kernels_strides_in_dimensions_of_one_element(
    shape: tuple[int, ...], stride: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    x = torch.zeros(128).as_strided(shape, stride, 3)
    for target in (aten.view.default, aten._unsafe_view.default):
        _compare(target, x, list(wanted))
        _compare(target, x, [-1, *shape[1:]] if 0 not in shape else [0, 1, 3])
    for leading in ((), (1,), (1, 1), (2, 1)):
        _compare(aten.expand.default, x, [*leading, *shape])
    _compare(aten.expand.default, x[:1], [-1, *shape[1:]])


def test_a_view_keeps_its_memory_and_its_place() -> None:
    with kernels_own_geometry(), FakeTensorMode():
        x = torch.empty(2, 60)[:, 11:].unsqueeze(2).transpose(1, 2)
        made = x.view(2, 1, 7, 7)
    assert made.stride() == (60, 49, 7, 1)
    assert made.storage_offset() == 11 and made._is_view()
    assert made.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_a_view_that_cannot_be_is_refused_in_the_kernels_words() -> None:
    with kernels_own_geometry(), FakeTensorMode(), pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.empty(4, 6).t().view(24)


def test_torch_is_left_as_it_was() -> None:
    from torch._decomp import meta_table
    from torch._subclasses.fake_impls import op_implementations_dict

    before = dict(meta_table), dict(op_implementations_dict)
    with pytest.raises(ZeroDivisionError), kernels_own_geometry():
        assert dict(op_implementations_dict) != before[1]
        raise ZeroDivisionError
    assert (dict(meta_table), dict(op_implementations_dict)) == before
