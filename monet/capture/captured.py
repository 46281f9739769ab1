"""The result of a capture, and the kind of device that a capture is for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from monet.base.graph import Graph
from monet.base.sizes import Ranges
from monet.capture.guards.attribute_writes import Write

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


def device_type(model: torch.nn.Module, inputs: Any) -> str:
    """The kind of device of the first parameter, buffer or input (``"cpu"``, ``"cuda"``), whose autocast matters."""
    tensors = itertools.chain(model.parameters(), model.buffers(), pytree.tree_leaves(inputs))
    return next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")
