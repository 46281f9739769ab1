"""What capturing a module gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.graph import Graph

aten = torch.ops.aten


@dataclass(frozen=True)
class Captured:
    """A graph with what is needed to call it like the module.

    ``constants``: tensors that are neither parameters nor buffers of the module, by source target.
    ``literals``: the flattened inputs that are no tensors, by position; the graph has them inside.
    ``output_literals``: likewise for the outputs.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    literals: Mapping[int, Any]
    output_literals: Mapping[int, Any]


def device_type(model: torch.nn.Module, inputs: Any) -> str:
    """Of the first parameter, buffer or input: the kind of device whose autocast matters."""
    tensors = (*model.parameters(), *model.buffers(), *pytree.tree_leaves(inputs))
    return next((t.device.type for t in tensors if isinstance(t, torch.Tensor)), "cpu")
