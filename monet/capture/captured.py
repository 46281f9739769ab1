"""The result of a capture, what is said where two of one model differ, and the kind of device that one is for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from monet.base.graph import Graph, Operator
from monet.base.sizes import Ranges
from monet.capture.effects.attribute_writes import Write
from monet.capture.effects.module_changes import RUN_ONCE

if TYPE_CHECKING:
    from monet.capture.islands.island import Island


@dataclass(frozen=True)
class Captured:
    """A graph with what is needed to call it like the module.

    ``graph``: the step, in canonical form.
    ``constants``: tensors that are neither parameters nor buffers of the module, by source target.
    ``in_spec``, ``out_spec``: the structure of inputs (``(args, kwargs)``) and outputs, as pytrees.
    ``literals``: the flattened inputs that are no tensors, by position; their values are part of the graph.
    ``output_literals``: the flattened outputs that are no tensors, by position.
    ``cast_apart``: a weight that several ``with torch.autocast`` of the model cast, each for itself; "" for none.
    ``writes``: what the forward pass assigns to attributes; outputs that they name are beyond those of ``out_spec``.
    ``ranges``: which sizes vary, where the graph holds for more than one shape.
    ``islands``: by key, the parts of the model that run as they are.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    literals: Mapping[int, Any]
    output_literals: Mapping[int, Any]
    cast_apart: str = ""
    writes: tuple[Write, ...] = ()
    ranges: Ranges | None = None
    islands: Mapping[str, Island] = field(default_factory=dict)

    @property
    def island_bytes(self) -> int:
        """The most that the parts which run as they are have held beside the arena."""
        return max((island.beside.most_bytes for island in self.islands.values()), default=0)


def another_each_time(one: Graph, other: Graph) -> str:
    """What is said of a model that was traced as ``one`` and then as ``other``, with the line where they part, if these
    two do."""
    return (
        "the model computes something else each time it is traced: two traces of one call differ in operators, "
        "arguments, shapes or dtypes, and a plan is of one of them. Its forward pass reads what changes from call to "
        f"call (an iterator, a counter, a clock): {RUN_ONCE}; else make that a tensor, and pass it in or keep it in a "
        f"buffer (register_buffer){_place(one, other)}"
    )


def _place(one: Graph, other: Graph) -> str:
    """The line of the first operator that the other trace does not have there; "" where there is none."""
    pairs = itertools.zip_longest((*one.forward, *one.backward), (*other.forward, *other.backward))
    parted = next((mine or its for mine, its in pairs if _text(mine) != _text(its)), None)
    return f"\n{parted.where}" if parted is not None and parted.where else ""


def _text(operator: Operator | None) -> str:
    return "" if operator is None else f"{operator.signature}|{operator.args}|{operator.kwargs}|{operator.outputs}"


def device_type(model: torch.nn.Module, inputs: Any) -> str:
    """The kind of device of the first parameter, buffer or input (``"cpu"``, ``"cuda"``), whose autocast matters."""
    tensors = itertools.chain(model.parameters(), model.buffers(), pytree.tree_leaves(inputs))
    return next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")
