"""Python decompositions of torch that a capture leaves out, or has in another form.

While torch traces, it replaces interpolation by indexing and arithmetic where eager runs a kernel: results are rounded
in another way, indices and every weighted neighbour become tensors of the step, and the gradient of a nearest neighbour
is an accumulating scatter.

A GRU's gates lie next to each other in eager's memory, and the kernel of sigmoid takes them row by row: the rest of a
row after its last full vector is computed with another exp. A trace has each gate in memory of its own, so that vectors
begin at other elements.

Torch's traced recurrent layers leave out the dropout between them: torch 2.13 asks whether ``num_layers < i - 1``,
which never holds. The last states of torch 2.11's traced LSTM have a dimension too many, that of the step.

Eager draws nothing for a dropout of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch._decomp.decompositions as torch_decompositions
from torch import Tensor
from torch._C import DispatchKey
from torch.nn.functional import linear

aten = torch.ops.aten

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_PACKETS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "matmul",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
)


def _overloads() -> list[torch._ops.OpOverload]:
    packets = [getattr(aten, packet) for packet in _PACKETS]
    return [getattr(packet, name) for packet in packets for name in ("default", "vec") if name in packet.overloads()]


def _gru_step(
    i: Tensor, hidden: Tensor, ih_weight: Tensor, ih_bias: Tensor | None, hh_weight: Tensor, hh_bias: Tensor | None
) -> Tensor:
    """One step of a GRU. ``i``: the product with the input. The last dimension has the gates in the order r, z, n."""
    h = linear(hidden, hh_weight, hh_bias)
    width = hidden.shape[-1]
    reset, update = (h[..., : 2 * width] + i[..., : 2 * width]).chunk(2, -1)
    new = (i[..., 2 * width :] + h[..., 2 * width :] * reset.sigmoid()).tanh()
    return (hidden - new) * update.sigmoid() + new


def _gru_cell(
    x: Tensor, hidden: Tensor, ih_weight: Tensor, hh_weight: Tensor,
    ih_bias: Tensor | None = None, hh_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _gru_step(linear(x, ih_weight, ih_bias), hidden, ih_weight, ih_bias, hh_weight, hh_bias)


def _gru_packed(
    x: Tensor, hidden: Tensor, ih_weight: Tensor, ih_bias: Tensor | None, hh_weight: Tensor, hh_bias: Tensor | None
) -> Tensor:
    return _gru_cell(x, hidden, ih_weight, hh_weight, ih_bias, hh_bias)


def _stacked(
    x: Tensor, hidden: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, layer: Callable[..., tuple[Tensor, Any]],
) -> tuple[Tensor, list[Any]]:  # fmt: skip
    """Layers of a recurrent network with dropout between them, on steps first; ``layer`` is one in one direction."""
    x = x.transpose(0, 1) if batch_first else x
    last: list[Any] = []
    for i in range(num_layers):
        forward, first, backward, first_back = torch_decompositions.params_hiddens(params, hidden, i, bidirectional)
        both = [layer(x, first, forward, has_biases)]
        if bidirectional:
            both.append(layer(x, first_back, backward, has_biases, reverse=True))
        last += [_of_one_step(state) for _, state in both]
        x = torch.cat([steps for steps, _ in both], -1) if bidirectional else both[0][0]
        if dropout != 0 and train and i < num_layers - 1:
            x = torch.dropout(x, dropout, train=True)
    return (x.transpose(0, 1) if batch_first else x), last


def _of_one_step(state: Any) -> Any:
    """The last state of one layer, rows by columns; an LSTM has two."""
    if isinstance(state, tuple):
        return tuple(_of_one_step(part) for part in state)
    return state.squeeze(0) if state.dim() == 3 else state


@contextmanager
def _with_kernels(overload: torch._ops.OpOverload, kernels: Mapping[DispatchKey, Any]) -> Iterator[None]:
    """A context in which ``overload`` has these Python kernels; None: there it has none."""
    before = {key: overload.py_kernels.get(key) for key in kernels}

    def put(those: Mapping[DispatchKey, Any]) -> None:
        for key, kernel in those.items():
            if kernel is None:
                overload.py_kernels.pop(key, None)
            else:
                overload.py_kernels[key] = kernel
        overload._dispatch_cache.clear()

    try:
        put(kernels)
        yield
    finally:
        put(before)


@contextmanager
def _recurrent_as_eager() -> Iterator[None]:
    own = {"gru_cell": _gru_step, "gru_cell_data": _gru_packed, "_rnn_helper": _stacked}
    theirs = {name: getattr(torch_decompositions, name) for name in own}
    try:
        for name, step in own.items():
            setattr(torch_decompositions, name, step)
        with _with_kernels(aten.gru_cell.default, dict.fromkeys(_KEYS, _gru_cell)):
            yield
    finally:
        for name, step in theirs.items():
            setattr(torch_decompositions, name, step)


def _dropout(x: Tensor, p: float, train: bool, *, torchs: Callable[..., Tensor]) -> Tensor:
    return x * x.new_zeros(()) if train and p == 1 else torchs(x, p, train)


@contextmanager
def without_decompositions() -> Iterator[None]:
    """A context in which traced interpolation is the operator that eager dispatches to, the gates of a GRU lie next to
    each other, and a dropout of everything draws nothing. Only for one thread at a time: it changes torch's tables."""
    dropout = aten.dropout.default
    dropouts = {key: partial(_dropout, torchs=kernel) for key in _KEYS if (kernel := dropout.py_kernels.get(key))}
    with ExitStack() as stack:
        for overload in _overloads():
            stack.enter_context(_with_kernels(overload, dict.fromkeys(_KEYS)))
        stack.enter_context(_recurrent_as_eager())
        stack.enter_context(_with_kernels(dropout, dropouts))
        yield
