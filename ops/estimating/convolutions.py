"""What a convolution is asked to do, whichever kernel does it, and what oneDNN asks for to do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from monet.base.graph import Ref, Value
from monet.base.measurement import Request
from monet.ops.families.convolution import chunks, im2col
from monet.ops.families.convolution.onednn import onednn_takes
from monet.ops.offers.implementation import Implementation

aten = torch.ops.aten

FORWARD, OF_INPUT, OF_PARAMETERS = "forward", "of input", "of parameters"
BLOCK = 8 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 16
"""Channels next to each other in oneDNN's own layout, whose tensors are padded to a multiple of it: a vector of float32
on the machine that estimates."""
LEAST_ONEDNN = 20480
"""As torch decides (aten's ``ConvParams::use_mkldnn``): elements in the first four dimensions of a batch of one."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Batch, channels and sizes of a tensor of images; ``last``: the channels are next to each other."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    last: bool = False

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * self.itemsize

    @property
    def blocked_bytes(self) -> int:
        """In oneDNN's layout."""
        batch, channels, *rest = self.sizes
        return batch * -(-channels // BLOCK) * BLOCK * math.prod(rest) * self.itemsize

    def part(self, count: int) -> Shape:
        """Of one of ``count`` chunks of the batch."""
        return replace(self, sizes=(self.sizes[0] // count, *self.sizes[1:]))


@dataclass(frozen=True, slots=True)
class Convolution:
    """``x``: what the windows lie in, ``y``: what has one element a window, whichever of them the call makes.

    ``direction``: as the plain convolution is seen, so that the forward pass of a transposed one is ``OF_INPUT``.
    ``weight``: (O, I / groups, *kernel). ``count``: of chunks; 1 for the whole batch. ``by_columns``: im2col.
    ``given``: sizes of what the operator of the forward pass reads.
    """

    direction: str
    x: Shape
    y: Shape
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    count: int = 1
    by_columns: bool = False
    given: tuple[int, ...] = ()

    @property
    def by_onednn(self) -> bool:
        """Whether torch gives it to oneDNN: not where an operator's input is one small image or volume."""
        if not onednn_takes(self.x.dtype):
            return False
        large_filter = len(self.weight) > 3 and min(self.weight[-2:]) > 3
        return self.groups > 1 or large_filter or self.given[0] > 1 or math.prod(self.given[:4]) > LEAST_ONEDNN

    @property
    def flops(self) -> float:
        batch, channels, *out = self.y.sizes
        return 2.0 * batch * channels * math.prod(out) * math.prod(self.weight[1:])

    @property
    def weight_bytes(self) -> int:
        return math.prod(self.weight) * self.x.itemsize

    @property
    def blocked_weight_bytes(self) -> int:
        outer, inner, *kernel = self.weight
        if self.depthwise:
            return -(-outer // BLOCK) * BLOCK * math.prod(kernel) * self.x.itemsize
        if inner >= BLOCK // 2 or self.direction == OF_INPUT:
            inner = -(-inner // BLOCK) * BLOCK
        return -(-outer // BLOCK) * BLOCK * inner * math.prod(kernel) * self.x.itemsize

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.x.sizes[1]

    @property
    def few_channels(self) -> bool:
        """Images of colours: oneDNN reads them as they are."""
        return self.x.sizes[1] < BLOCK // 2

    @property
    def strided(self) -> bool:
        return max(self.stride) > 1

    @property
    def pointwise(self) -> bool:
        return all(n == 1 for n in self.weight[2:])

    @property
    def form(self) -> str:
        """Which of oneDNN's kernels it gets, roughly."""
        if self.depthwise:
            return "depthwise"
        if self.few_channels:
            return "few channels"
        return "pointwise" if self.pointwise else "windows"


Read = Callable[[Implementation, Mapping[str, Value]], "Convolution | None"]


def convolution(run: Implementation, values: Mapping[str, Value]) -> Convolution | None:
    """The convolution that ``run`` is a kernel of; None for other operators and for a bias's sum."""
    read = _READERS.get(run.call)
    return None if read is None else read(run, values)


def _shape(value: Value | Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> Shape:
    sizes = value.shape if isinstance(value, Value) else tuple(value)
    steps = value.stride if isinstance(value, Value) else (stride or ())
    last = len(sizes) > 3 and len(steps) > 1 and steps[1] == 1 and sizes[1] > 1
    return Shape(tuple(sizes), dtype, last)


def _value(argument: Any, values: Mapping[str, Value]) -> Value:
    assert isinstance(argument, Ref)
    return values[argument.name]


def _made(direction: str, x: Shape, y: Shape, weight: Value | Sequence[int], geometry: Sequence[Any]) -> Convolution:
    """``geometry``: stride, padding, dilation, whether transposed, output padding, groups."""
    given = x.sizes
    if bool(geometry[3]):
        x, y = y, x
        direction = {FORWARD: OF_INPUT, OF_INPUT: FORWARD}.get(direction, direction)
    sizes = weight.shape if isinstance(weight, Value) else tuple(weight)
    rank = len(x.sizes) - 2
    stride, padding = (tuple(n) * rank if len(n) == 1 else tuple(n) for n in geometry[:2])
    return Convolution(direction, x, y, tuple(sizes), stride, padding, int(geometry[5]), given=given)


def _forward(run: Implementation, values: Mapping[str, Value]) -> Convolution | None:
    x, weight, _, *geometry = run.args
    given = _value(x, values)
    result = values[run.outputs[0]] if run.outputs[0] is not None else None
    if result is None:
        return None
    dtype = given.dtype
    return _made(FORWARD, _shape(given, dtype), _shape(result, dtype), _value(weight, values), geometry)


def _forward_in_chunks(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    x, weight, _, geometry, shape, stride, count = run.args
    given = _value(x, values)
    dtype = given.dtype
    found = _made(FORWARD, _shape(given, dtype), _shape(shape, dtype, stride), _value(weight, values), geometry)
    return replace(found, count=count)


def _of_input(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    gradient, weight, geometry, shape, stride, *rest = run.args
    given = _value(gradient, values)
    dtype = given.dtype
    x = _shape(shape, dtype, stride)
    found = _made(OF_INPUT, x, _shape(given, dtype), _value(weight, values), geometry[1:])
    return replace(found, count=rest[1] if rest else 1)


def _backward(run: Implementation, values: Mapping[str, Value]) -> Convolution | None:
    gradient, x, weight, _, *geometry, mask = run.args
    if not mask[1]:
        return None
    y, given = _value(gradient, values), _value(x, values)
    dtype = y.dtype
    return _made(OF_PARAMETERS, _shape(given, dtype), _shape(y, dtype), _value(weight, values), geometry)


def _of_parameters_in_chunks(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    gradient, x, weight, geometry, _, _, count = run.args
    y, given = _value(gradient, values), _value(x, values)
    dtype = y.dtype
    found = _made(OF_PARAMETERS, _shape(given, dtype), _shape(y, dtype), _value(weight, values), geometry[1:])
    return replace(found, count=count)


def _by_columns(
    direction: str, x: Shape, y: Shape, weight: Sequence[int], lists: Sequence[Sequence[int]], groups: int
) -> Convolution:
    stride, padding = tuple(lists[0]), tuple(lists[1])
    return Convolution(direction, x, y, tuple(weight), stride, padding, groups, by_columns=True)


def _columns_forward(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    x, weight, _, shape, _, lists, groups = run.args
    given = _value(x, values)
    dtype = given.dtype
    return _by_columns(FORWARD, _shape(given, dtype), _shape(shape, dtype), _value(weight, values).shape, lists, groups)


def _columns_of_input(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    gradient, weight, _, shape, _, lists, groups = run.args
    y = _value(gradient, values)
    dtype = y.dtype
    return _by_columns(OF_INPUT, _shape(shape, dtype), _shape(y, dtype), _value(weight, values).shape, lists, groups)


def _columns_of_parameters(run: Implementation, values: Mapping[str, Value]) -> Convolution:
    gradient, x, shape, _, lists, groups, _ = run.args
    y, given = _value(gradient, values), _value(x, values)
    dtype = y.dtype
    return _by_columns(OF_PARAMETERS, _shape(given, dtype), _shape(y, dtype), shape, lists, groups)


_READERS: Mapping[Callable[..., Any], Read] = {
    aten.convolution.default: _forward,
    chunks.forward: _forward_in_chunks,
    chunks.input_gradient: _of_input,
    chunks.input_gradient_in_parts: _of_input,
    aten.convolution_backward.default: _backward,
    chunks.parameter_gradient: _of_parameters_in_chunks,
    im2col.forward: _columns_forward,
    im2col.input_gradient: _columns_of_input,
    im2col.weight_gradient: _columns_of_parameters,
}


def convolution_requests(it: Convolution, run: Implementation, values: Mapping[str, Value]) -> tuple[Request, ...]:
    """What the kernel asks for. oneDNN copies what it reads into its own layout, computes in that, and copies back::

    forward, of input    ├ read ┤
                          ├ weight ┤
                            ├ result ┼┤
                                     ├ result, as torch has it ──
    """
    made = [(position, values[name].storage_bytes) for position, name in enumerate(run.outputs) if name is not None]
    if it.by_columns:
        (first, size), *others = made
        columns = im2col.temporary_numbers(
            it.x.sizes[1], it.x.sizes[2:], it.y.sizes[2:], it.weight[2:], it.stride, it.padding
        )
        if columns and it.direction == OF_INPUT and not any(it.padding):  # columns are added in an image of zeros
            columns += math.prod(it.x.sizes[1:])
        found = [Request(size, 0, None, first)]
        if columns:
            found.append(Request(columns * it.x.itemsize, 1, 2, None))
        return (*found, *(Request(count, len(found) + i, None, o) for i, (o, count) in enumerate(others)))
    if it.count > 1:
        return _in_chunks(it, made)
    copies = _copies(it)
    last = max((end for _, _, end in copies), default=1) - 1
    found = [Request(size, begin, end, None) for size, begin, end in copies]
    found += [Request(size, last + i, None, position) for i, (position, size) in enumerate(made)]
    return tuple(found)


def _in_chunks(it: Convolution, made: Sequence[tuple[int, int]]) -> tuple[Request, ...]:
    """The results, and what one chunk asks for, its own result included; the next chunk asks for the same again."""
    given = (it.given[0] // it.count, *it.given[1:])
    part = replace(it, x=it.x.part(it.count), y=it.y.part(it.count), count=1, given=given)
    results = {FORWARD: part.y.bytes, OF_INPUT: part.x.bytes, OF_PARAMETERS: it.weight_bytes}
    first, copies = len(made), _copies(part)
    last = max((end for _, _, end in copies), default=1) - 1
    found = [Request(size, i, None, position) for i, (position, size) in enumerate(made)]
    found += [Request(size, first + begin, first + end, None) for size, begin, end in copies]
    if not it.x.last and not it.y.last:  # else a copy is the result already
        found.append(Request(results[it.direction], first + last, first + last + 1, None))
    return tuple(found)


def _copies(it: Convolution) -> list[tuple[int, int, int]]:
    """Bytes, begin and end of each copy of one call, in ticks of which the last before the end makes the result."""
    if not it.by_onednn:
        if it.direction == OF_INPUT and it.given == it.x.sizes:
            return []  # its columns are not from torch's allocator
        # The windows of the whole batch as columns, one group after another.
        cells = it.x.sizes[1] // it.groups * math.prod(it.weight[2:]) * math.prod(it.y.sizes[2:])
        columns = 0 if it.pointwise and not it.strided else it.x.sizes[0] * cells * it.x.itemsize
        return [(size, 0, 2) for size in (columns, it.y.bytes if it.groups > 1 else 0) if size]
    if it.x.last and it.y.last:
        return [] if it.direction == OF_PARAMETERS else [(it.weight_bytes, 0, 1)]
    if it.x.last or it.y.last:
        bordered = _bordered_bytes(it) if it.direction == OF_INPUT and it.strided else 0
        copies = [(it.weight_bytes, 0, 5), (it.y.bytes, 1, 5), (it.x.bytes, 2, 5), (it.weight_bytes, 3, 5)]
        return [*copies, (bordered, 4, 5)] if bordered else copies
    x = 0 if it.few_channels else it.x.blocked_bytes
    y, weight = it.y.blocked_bytes, it.blocked_weight_bytes
    if it.direction == FORWARD:
        copies = [(x, 0, 3), (weight, 1, 3), (y, 2, 4)]
    elif it.direction == OF_PARAMETERS:
        copies = [(y, 0, 3), (x, 1, 3), (weight, 2, 4)]
    elif it.strided and not it.depthwise:
        copies = [(y, 0, 4), (weight, 1, 4), (it.x.bytes, 2, 6), (_bordered_bytes(it), 3, 4), (it.x.bytes, 4, 6)]
    else:
        copies = [(y, 0, 3), (weight, 1, 3), (it.x.blocked_bytes, 2, 4)]
    return [copy for copy in copies if copy[0]]


def _bordered_bytes(it: Convolution) -> int:
    """For each thread an image of ``y`` with as many zeros beside it as windows overlap."""
    _, channels, *sizes = it.y.sizes
    border = (-(-(kernel - 1) // step) for kernel, step in zip(it.weight[2:], it.stride, strict=True))
    image = channels * math.prod(size + more for size, more in zip(sizes, border, strict=True))
    return torch.get_num_threads() * image * it.x.itemsize
