"""A graph of ``torch.compile`` as a module again, with the parameters and buffers that Dynamo made arguments of."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import torch

PARAMETER, BUFFER, INPUT = "parameter", "buffer", "input"
_PART = re.compile(r"\['([^']+)'\]")
_NO_PART = {"_modules", "_parameters", "_buffers"}
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


class _Behind:
    """Holds a graph where no capture looks for one to keep: a generated graph has no source that could name it."""

    __slots__ = ("graph",)

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph


class LiftedGraph(torch.nn.Module):
    """``graph`` as a module of its inputs, without its checkpoints: the plan decides what is computed again. Names are
    those of the model, with ``_`` for dots. ``has_checkpoints``: whether ``graph`` has any."""

    def __init__(self, graph: torch.fx.GraphModule, args: Sequence[Any]) -> None:
        """``args``: of a call of ``graph``; what is a parameter among them tells which are."""
        super().__init__()
        self.has_checkpoints = any(node.target is _CHECKPOINT for node in graph.graph.nodes)
        self._behind = _Behind(_without_checkpoints(graph) if self.has_checkpoints else graph)
        self._places: list[tuple[str, str]] = []
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        for node, value in zip(placeholders, args, strict=True):
            source = getattr(getattr(node, "_dynamo_source", None), "name", "")
            if isinstance(value, torch.nn.Parameter):
                place = PARAMETER, self._free_name(source, node.name)
                self.register_parameter(place[1], value)
            elif isinstance(value, torch.Tensor) and "._buffers[" in source:
                place = BUFFER, self._free_name(source, node.name)
                self.register_buffer(place[1], value)
            else:
                place = INPUT, ""
            self._places.append(place)

    def _free_name(self, source: str, otherwise: str) -> str:
        name = re.sub(r"\W", "_", "_".join(part for part in _PART.findall(source) if part not in _NO_PART)) or otherwise
        return name if not hasattr(self, name) and name.isidentifier() else f"{otherwise}_{len(self._places)}"

    def inputs(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs among the arguments of a call; its parameters and buffers become this module's."""
        inputs = []
        for (kind, name), value in zip(self._places, args, strict=True):
            if kind == PARAMETER:
                self._parameters[name] = value
            elif kind == BUFFER:
                self._buffers[name] = value
            else:
                inputs.append(value)
        return tuple(inputs)

    def forward(self, *inputs: Any) -> Any:
        """What the graph returns."""
        given, args = iter(inputs), []
        for kind, name in self._places:
            args.append(next(given) if kind == INPUT else getattr(self, name))
        return self._behind.graph.forward(*args)


def _without_checkpoints(original: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy with the content of checkpoints in their places."""
    module = torch.fx.GraphModule(original, copy.deepcopy(original.graph))
    graph = module.graph
    for node in [node for node in graph.nodes if node.target is _CHECKPOINT]:
        body = _without_checkpoints(_attribute(module, str(node.args[0].target)))
        inner = [n for n in body.graph.nodes if n.op == "placeholder"]
        given: dict[Any, Any] = dict(zip(inner, node.args[1:], strict=True))
        for n in body.graph.nodes:
            if n.op == "get_attr":  # of the body, under another name
                name = f"{node.name}_{n.name}"
                setattr(module, name, _attribute(body, str(n.target)))
                with graph.inserting_before(node):
                    given[n] = graph.get_attr(name)
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(body.graph, given)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # all of them are getitem
            graph.erase_node(user)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module
