"""A linear layer whose result only a cross entropy reads: the loss and all its gradients, by blocks of rows.

    x = h Wᵀ + b,  lse = log Σ exp x,  loss = mean over rows of (lse - x[target])
    g = (exp(x - lse) - [class = target]) / rows,  dh = g W,  dW = gᵀ h,  db = Σ g

The logits x, as wide as the vocabulary, are there for some rows at a time, and g is written over them. So the forward
pass makes the gradients, and the backward pass multiplies them by that of the loss: as many products as in eager's
step (Hsu et al., "Liger Kernel", 2024, which divides its rows in the same way).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from monet.base.graph import Graph, Operator, Ref, Value
from monet.ops.fusion.compiling import Geometry
from monet.ops.fusion.cross_entropy import MEAN, parts
from monet.ops.fusion.fused import Fused, Labels, Slot, Step
from monet.ops.fusion.rewriting import makers_of, readers_of, rewritten
from monet.ops.kernel_names import kernel
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record

aten = torch.ops.aten

LEAST_ELEMENTS = 1 << 20
"""Of the logits: fewer need no memory that a plan would miss."""
CHUNKS = (1, 2, 4, 8, 16, 32)
"""Into how many chunks of rows the logits are divided. Each one more reads and writes the weight's gradient again."""
BLOCK = 64
"""Rows of a call of the kernel, and least of a chunk: one geometry to compile, whatever the chunks."""
TOLERANCE = 64 * 2.0**-24
"""Sums over rows in another order, and roundings as of other regions."""

INPUT, WEIGHT, TRANSPOSED, BIAS, BIAS_ROW = "input", "weight", "transposed weight", "bias", "bias as a row"
"""Of what a gradient is; a weight's may be made as its transpose, and a bias's with a dimension of one row."""


@dataclass(frozen=True, slots=True)
class Head:
    """``of_block``: logits, targets and their number in, the loss of these rows out; their gradient is written over the
    logits. ``labels``: the targets. ``gradients``: those that are made, in order."""

    of_block: Fused
    labels: Labels
    gradients: tuple[str, ...]

    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return loss_head(self, 1, hidden, weight, bias, target)

    def __str__(self) -> str:
        return f"fused.loss_head.({self.of_block}, ignored {self.labels.ignored} -> loss, {', '.join(self.gradients)})"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A gradient that was made for a loss's gradient of 1, times that gradient."""

    def __call__(self, gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return gradient * factor

    def __str__(self) -> str:
        return "fused.scaled_gradient"


@kernel("loss_head")
def loss_head(
    head: Head,
    chunks: int,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The loss, and its gradients as ``head`` names them. ``hidden``: rows × width; ``weight``: width × classes, of
    which aten makes the logits; ``target``: rows."""
    rows, (width, classes) = len(hidden), weight.shape
    step = _rows_of_chunk(rows, chunks)
    head.labels.require(target)
    total = (target != head.labels.ignored).sum().to(hidden.dtype)
    loss = hidden.new_zeros(())
    shapes = {
        INPUT: (rows, width), WEIGHT: (classes, width), TRANSPOSED: (width, classes), BIAS: (classes,),
        BIAS_ROW: (1, classes),
    }  # fmt: skip
    made = {name: hidden.new_empty(shapes[name]) for name in head.gradients}
    logits = hidden.new_empty((step, classes))
    for begin in range(0, rows, step):
        here = hidden[begin : begin + step]
        x = logits[: len(here)]
        if bias is None:
            torch.mm(here, weight, out=x)
        else:
            torch.addmm(bias, here, weight, out=x)
        for at in range(0, len(x), BLOCK):
            classes_here = target[begin + at : begin + min(at + BLOCK, len(x))]
            of_block = head.of_block(x[at : at + BLOCK], classes_here, total)
            assert isinstance(of_block, torch.Tensor)
            loss += of_block
        for name, sum_ in made.items():
            if name == INPUT:
                torch.mm(x, weight.t(), out=sum_[begin : begin + step])
            elif name in (BIAS, BIAS_ROW):
                of_chunk = x.sum(0)
                sum_.copy_(of_chunk) if begin == 0 else sum_.add_(of_chunk)
            else:
                one, other = (x.t(), here) if name == WEIGHT else (here.t(), x)
                torch.mm(one, other, out=sum_) if begin == 0 else sum_.addmm_(one, other)
    return (loss, *made.values())


def geometries(run: Implementation, values: Mapping[str, Value]) -> list[tuple[Geometry, ...]]:
    """Those with which a call of ``loss_head`` calls its kernel: whole blocks of rows, and what the last chunk has
    besides."""
    _, chunks, hidden, weight, _, target = run.args
    rows, classes, labels = values[hidden.name].shape[0], values[weight.name].shape[1], values[target.name]
    step = _rows_of_chunk(rows, chunks)
    dtype, device = values[hidden.name].dtype, values[hidden.name].device
    of_chunks = {step, rows % step or step}
    return [
        (
            (dtype, (count, classes), (classes, 1), device),
            (labels.dtype, (count,), labels.stride, device),
            (dtype, (), (), device),
        )
        for count in sorted({min(BLOCK, size) for size in of_chunks} | {size % BLOCK for size in of_chunks} - {0})
    ]


def flops(run: Implementation, values: Mapping[str, Value]) -> float:
    """Of the products: one for the logits, and one for each gradient but the bias's."""
    head, _, hidden, weight = run.args[:4]
    products = 1 + sum(name not in (BIAS, BIAS_ROW) for name in head.gradients)
    return 2.0 * products * values[hidden.name].numel * values[weight.name].shape[1]


def logits_bytes(run: Implementation, values: Mapping[str, Value]) -> int:
    """Of a chunk."""
    _, chunks, hidden, weight = run.args[:4]
    rows, dtype = values[hidden.name].shape[0], values[hidden.name].dtype
    return _rows_of_chunk(rows, chunks) * values[weight.name].shape[1] * dtype.itemsize


def _rows_of_chunk(rows: int, chunks: int) -> int:
    return min(rows, ceil(rows / chunks / BLOCK) * BLOCK)


def with_loss_heads(graph: Graph) -> Graph:
    """``graph`` with one operator for each linear layer and cross entropy that belong together."""
    maker, readers = makers_of(graph), readers_of(graph)
    escaping = {graph.storage(n) for n in graph.outputs if n is not None}
    changed: dict[str, Operator | None] = {}
    added: dict[str, Value] = {}
    gone: set[str] = set()
    for loss in graph.forward:
        found = _found(loss, graph, maker, readers)
        if found is None or found.inner(graph) & escaping:
            continue
        raw = {op.name: f"{op.outputs[0]}.of_loss" for op in found.gradients.values()}
        for op in found.gradients.values():
            value = graph.values[str(op.outputs[0])]
            added[raw[op.name]] = replace(value, name=raw[op.name], storage=raw[op.name])
            changed[op.name] = replace(op, target=Scaled(), args=(Ref(raw[op.name]), found.tangent), kwargs=())
        changed.update(dict.fromkeys(op.name for op in found.removed))
        changed[loss.name] = replace(
            loss,
            target=found.head(graph),
            args=(*found.product, loss.args[1]),
            kwargs=(),
            outputs=(loss.outputs[0], *raw.values()),
            single=False,
        )
        gone |= found.inner(graph)
    return rewritten(graph, changed, added, gone)


@dataclass(frozen=True, slots=True)
class _Found:
    """``product``: the layer's input, weight and bias. ``gradients``: by name, the operators that make them.
    ``removed``: operators of both passes that are no longer there. ``tangent``: the gradient of the loss."""

    loss: Operator
    product: tuple[Ref, Ref, Ref | None]
    gradients: Mapping[str, Operator]
    removed: tuple[Operator, ...]
    tangent: Ref

    def inner(self, graph: Graph) -> set[str]:
        """Storages that are no longer made."""
        of_loss = [n for n in self.loss.outputs[1:] if n is not None]
        return {graph.storage(n) for op in self.removed for n in op.outputs if n is not None} | set(of_loss)

    def head(self, graph: Graph) -> Head:
        classes = graph.values[self.product[1].name].shape[1]
        labels = Labels(3, classes, self.loss.args[4])
        program = _of_block(classes, graph.device, labels.ignored, mean=self.loss.args[3] == MEAN)
        return Head(program, labels, tuple(self.gradients))


def _found(
    loss: Operator, graph: Graph, maker: Mapping[str, Operator], readers: Mapping[str, list[Operator]]
) -> _Found | None:
    """What belongs to a loss; None where another operator reads the logits or their gradient, too."""
    entropy = parts(loss, graph, maker, readers)
    if entropy is None:
        return None
    softmax, picked, spread = entropy
    logits = graph.values[softmax.args[0].name]
    product = maker.get(logits.storage)
    if product is None or product.kwargs or logits.numel < LEAST_ELEMENTS or readers[logits.storage] != [softmax]:
        return None
    if product.target is aten.addmm.default:
        bias, hidden, weight = product.args
        if graph.values[bias.name].shape != logits.shape[1:]:
            return None
    elif product.target is aten.mm.default:
        bias, (hidden, weight) = None, product.args
    else:
        return None
    made = graph.values[str(product.outputs[0])]
    if (made.shape, made.stride, made.offset) != (logits.shape, logits.stride, logits.offset):
        return None
    gradients: dict[str, Operator] = {}
    for op in readers.get(str(spread.outputs[0]), []):
        name = _gradient(op, str(spread.outputs[0]), hidden.name, weight.name, graph)
        if name is None or name in gradients or not _is_plain(op, graph):
            return None
        gradients[name] = op
    total = loss.outputs[1]
    if not gradients or (total is not None and readers.get(total, []) != [picked]):
        return None
    return _Found(loss, (hidden, weight, bias), gradients, (product, softmax, picked, spread), picked.args[0])


def _is_plain(op: Operator, graph: Graph) -> bool:
    """Whether the result is a tensor of its own without gaps."""
    (name,) = op.outputs
    value = graph.values[str(name)]
    return value.storage == name and value.stride == torch.empty(value.shape, device="meta").stride()


def _gradient(op: Operator, spread: str, hidden: str, weight: str, graph: Graph) -> str | None:
    """Which gradient an operator makes of the logits'; None where it is something else."""
    values = graph.values
    rows, width, classes = *values[hidden].shape, values[weight].shape[1]

    def is_(ref: Any, base: str, shape: tuple[int, ...], *, transposed: bool = False) -> bool:
        """Whether an argument is ``base``, or its transpose."""
        value, of = values[ref.name], values[base]
        stride = of.stride[::-1] if transposed else of.stride
        return (value.storage, value.shape, value.stride, value.offset) == (of.storage, shape, stride, of.offset)

    if op.target is aten.sum.dim_IntList and tuple(op.args[1]) in ((0,), (-2,)) and not op.kwargs:
        row = tuple(op.args[2:]) == (True,)
        return (BIAS_ROW if row else BIAS) if is_(op.args[0], spread, (rows, classes)) else None
    if op.target is not aten.mm.default:
        return None
    one, other = op.args
    if is_(one, spread, (rows, classes)):
        return INPUT if is_(other, weight, (classes, width), transposed=True) else None
    if is_(one, spread, (classes, rows), transposed=True):
        return WEIGHT if is_(other, hidden, (rows, width)) else None
    if is_(other, spread, (rows, classes)):
        return TRANSPOSED if is_(one, hidden, (width, rows), transposed=True) else None
    return None


def _of_block(classes: int, device: torch.device, ignored: int, *, mean: bool) -> Fused:
    x, target, total = Slot(0), Slot(1), Slot(2)
    steps: list[Step] = []

    def call(overload: Callable[..., Any], *args: Any, **kwargs: Any) -> Slot:
        steps.append(Step(overload, args, tuple(kwargs.items())))
        return Slot(2 + len(steps))

    largest = call(aten.amax.default, x, (1,), True)
    exps = call(aten.exp.default, call(aten.sub.Tensor, x, largest))
    sums = call(aten.sum.dim_IntList, exps, (1,), True)
    lse = call(aten.add.Tensor, largest, call(aten.log.default, sums))
    counts = call(aten.ne.Scalar, target, ignored)
    target_or_0 = call(aten.unsqueeze.default, call(aten.where.ScalarOther, counts, target, 0), 1)
    counts = call(aten.unsqueeze.default, counts, 1)
    terms = call(aten.sub.Tensor, lse, call(aten.gather.default, x, 1, target_or_0))
    loss = call(aten.sum.default, call(aten.where.ScalarOther, counts, terms, 0.0))
    shares = call(aten.exp.default, call(aten.sub.Tensor, x, lse))
    numbers = call(aten.arange.default, classes, device=device)
    is_target = call(aten.eq.Tensor, numbers, target_or_0)
    slopes = call(aten.where.self, is_target, call(aten.sub.Tensor, shares, 1.0), shares)
    if mean:
        loss, slopes = call(aten.div.Tensor, loss, total), call(aten.div.Tensor, slopes, total)
    call(aten.copy_.default, x, call(aten.where.ScalarOther, counts, slopes, 0.0))
    return Fused(3, tuple(steps), (loss.index,))


def offers(op: Operator, context: Context) -> list[Implementation]:
    """By how many chunks there are."""
    assert isinstance(op.target, Head)
    rows = context.value(op.args[0].name).shape[0]
    sizes = {_rows_of_chunk(rows, chunks): chunks for chunks in reversed(CHUNKS)}  # of equal sizes the fewest chunks
    made: dict[str, Any] = {"outputs": op.outputs, "single": False, "exact": False, "tolerance": TOLERANCE}
    return [
        Implementation(f"chunks-{chunks}", loss_head, (op.target, chunks, *op.args), (), **made)
        for chunks in sorted(sizes.values())
    ]


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """As ``offers``; None where an input has changed since."""
    return None if context.reads_written(op) else offers(op, context)


def scaled_offers(op: Operator, context: Context) -> list[Implementation]:
    """Nobody else reads what is scaled, so that may be in place; but a gradient that leaves the step must not be made
    before the backward pass, when the last step's may still be there."""
    plain = Implementation("aten", aten.mul.Tensor, op.args, (), op.outputs)
    if context.graph.storage(str(op.outputs[0])) in context.escaping:
        return [plain]
    return [plain, replace(plain, name="in-place", call=aten.mul_.Tensor, overwrites=op.args[0].name)]


RECORD = Record(
    name="loss head",
    family="regions",
    forward_targets=(),
    backward_targets=(),
    equations="Hsu et al., Liger Kernel, 2024: linear layer and cross entropy by chunks of rows",
    samples=(),
    forward=offers,
    recompute=recompute,
    backward=scaled_offers,
)
