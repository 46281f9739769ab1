"""Which record serves which operator. An operator without one is handled by its own aten kernel."""

from __future__ import annotations

from monet.base.graph import Operator
from monet.ops.families import attention, dropout, indexing, interpolation, linear, loss, padding, parts, reduction
from monet.ops.families.activation import piecewise, smooth, softmax
from monet.ops.families.convolution import offers as convolution
from monet.ops.families.normalization import batch_norm, rms_norm, row_norm
from monet.ops.families.pooling import records as pooling
from monet.ops.offers.record import Record, Target

FAMILIES = (
    convolution,
    linear,
    batch_norm,
    row_norm,
    rms_norm,
    piecewise,
    smooth,
    softmax,
    dropout,
    attention,
    pooling,
    interpolation,
    padding,
    indexing,
    parts,
    reduction,
    loss,
)

RECORDS: tuple[Record, ...] = tuple(record for family in FAMILIES for record in family.RECORDS)

GENERIC = Record(
    name="any other operator",
    family="others",
    forward_targets=(),
    backward_targets=(),
    equations="aten's own forward and backward",
    samples=(),
)


def _by_target() -> dict[Target, Record]:
    found: dict[Target, Record] = {}
    for record in RECORDS:
        for target in (*record.forward_targets, *record.backward_targets):
            if found.setdefault(target, record) is not record:
                raise ValueError(f"{target} is in the records {found[target].name} and {record.name}")
    return found


_BY_TARGET = _by_target()


def record(op: Operator) -> Record:
    """The operator's record, ``GENERIC`` for one that has none."""
    return _BY_TARGET.get(op.target, GENERIC)
