"""Cross entropy over rows of classes, as one region in each pass.

    loss = mean over rows of (lse - x[target]),  lse = log Σ exp x  (a number a row: kept)
    dx   = (exp(x - lse) - [class = target]) dloss / rows

aten's way has the logarithms of all probabilities, and a gradient that is zero but for one class a row: two tensors of
the size of the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from monet.base.graph import Graph, Operator, Ref, Value
from monet.ops.fusion.fused import Fused, Labels, Slot, Step
from monet.ops.fusion.rewriting import makers_of, readers_of, rewritten

aten = torch.ops.aten
MEAN, _SUM = 1, 2
_ROWS, _ALL = (1,), (0,)


def with_cross_entropies(graph: Graph) -> Graph:
    """``graph`` with a region for each log-softmax and negative log-likelihood that belong together."""
    maker, readers = makers_of(graph), readers_of(graph)
    escaping = {graph.storage(n) for n in (*graph.outputs, *graph.gradients.values()) if n is not None}
    changed: dict[str, Operator | None] = {}
    added: dict[str, Value] = {}
    gone: set[str] = set()
    for loss in graph.forward:
        found = parts(loss, graph, maker, readers)
        if found is None:
            continue
        softmax, picked, spread = found
        inner = {str(softmax.outputs[0]), str(picked.outputs[0])}
        if inner & escaping or any(name is None for name in loss.outputs):
            continue
        name = f"{loss.name}.lse"
        logits = graph.values[softmax.args[0].name]
        rows = logits.shape[0]
        added[name] = Value(name, (rows, 1), (1, 1), 0, logits.dtype, logits.device, name, rows * logits.dtype.itemsize)
        gone |= inner
        changed[softmax.name] = changed[picked.name] = None
        changed[loss.name] = _forward(loss, softmax, logits, name)
        changed[spread.name] = _backward(loss, softmax, picked, spread, logits, name)
    return rewritten(graph, changed, added, gone)


def parts(
    loss: Operator, graph: Graph, maker: Mapping[str, Operator], readers: Mapping[str, list[Operator]]
) -> tuple[Operator, Operator, Operator] | None:
    """The log-softmax of a loss, and the two operators of its gradient; None where it is of another form."""
    if loss.target is not aten.nll_loss_forward.default or loss.args[2] is not None or loss.args[3] not in (MEAN, _SUM):
        return None
    softmax = maker.get(graph.storage(loss.args[0].name))
    if softmax is None or softmax.target is not aten._log_softmax.default or softmax.args[2]:
        return None
    logits = graph.values[softmax.args[0].name]
    if len(logits.shape) != 2 or softmax.args[1] not in (1, -1) or logits.dtype is not torch.float32:
        return None
    others = [op for op in readers.get(str(softmax.outputs[0]), []) if op is not loss]
    picked = [op for op in others if op.target is aten.nll_loss_backward.default]
    spread = [op for op in others if op.target is aten._log_softmax_backward_data.default]
    if len(others) != 2 or len(picked) != 1 or len(spread) != 1:
        return None
    if readers.get(str(picked[0].outputs[0])) != spread or spread[0].args[0] != Ref(str(picked[0].outputs[0])):
        return None
    return softmax, picked[0], spread[0]


def _forward(loss: Operator, softmax: Operator, logits: Value, lse: str) -> Operator:
    target, ignored = loss.args[1], loss.args[4]
    x, classes = Slot(0), Slot(1)
    steps = (
        Step(aten.amax.default, (x, _ROWS, True), ()),  # 2
        Step(aten.sub.Tensor, (x, Slot(2)), ()),
        Step(aten.exp.default, (Slot(3),), ()),
        Step(aten.sum.dim_IntList, (Slot(4), _ROWS, True), ()),
        Step(aten.log.default, (Slot(5),), ()),  # 6
        Step(aten.add.Tensor, (Slot(2), Slot(6)), ()),
        Step(aten.ne.Scalar, (classes, ignored), ()),
        Step(aten.where.ScalarOther, (Slot(8), classes, 0), ()),
        Step(aten.unsqueeze.default, (Slot(9), 1), ()),  # 10
        Step(aten.gather.default, (x, 1, Slot(10)), ()),
        Step(aten.sub.Tensor, (Slot(7), Slot(11)), ()),
        Step(aten.squeeze.dim, (Slot(12), 1), ()),
        Step(aten.where.ScalarOther, (Slot(8), Slot(13), 0.0), ()),  # 14
        Step(aten.sum.dim_IntList, (Slot(14), _ALL, False), ()),
        Step(aten._to_copy.default, (Slot(8),), (("dtype", torch.float32),)),
        Step(aten.sum.dim_IntList, (Slot(16), _ALL, False), ()),
        Step(aten.div.Tensor, (Slot(15), Slot(17)), ()),  # 18
    )
    labels = Labels(1, logits.shape[1], ignored)
    fused = Fused(2, steps, (18 if loss.args[3] == MEAN else 15, 17, 7), labels)
    return replace(
        loss, target=fused, args=(softmax.args[0], target), kwargs=(), outputs=(*loss.outputs, lse), single=False
    )


def _backward(
    loss: Operator, softmax: Operator, picked: Operator, spread: Operator, logits: Value, lse: str
) -> Operator:
    target, ignored, total = loss.args[1], loss.args[4], Ref(str(loss.outputs[1]))
    x, classes = Slot(1), Slot(2)
    steps = (
        Step(aten.sub.Tensor, (x, Slot(4)), ()),  # 5
        Step(aten.exp.default, (Slot(5),), ()),
        Step(aten.arange.default, (logits.shape[1],), (("device", logits.device),)),
        Step(aten.unsqueeze.default, (classes, 1), ()),
        Step(aten.eq.Tensor, (Slot(7), Slot(8)), ()),  # 9
        Step(aten.sub.Tensor, (Slot(6), 1.0), ()),
        Step(aten.where.self, (Slot(9), Slot(10), Slot(6)), ()),
        Step(aten.ne.Scalar, (Slot(8), ignored), ()),  # 12
        Step(aten.div.Tensor, (Slot(0), Slot(3)), ()),
        Step(aten.mul.Tensor, (Slot(11), Slot(13) if loss.args[3] == MEAN else Slot(0)), ()),
        Step(aten.where.ScalarOther, (Slot(12), Slot(14), 0.0), ()),
    )
    fused = Fused(5, steps, (15,))
    args = (picked.args[0], softmax.args[0], target, total, Ref(lse))
    return replace(spread, target=fused, args=args, kwargs=())
