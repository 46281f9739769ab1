"""A graph of ``torch.compile`` as a module again, with the parameters and buffers that Dynamo made arguments of."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

PARAMETER, BUFFER, INPUT, SIZE = "parameter", "buffer", "input", "size"
_PART = re.compile(r"\['([^']+)'\]|\[(\d+)\]")
_NO_PART = {"_modules", "_parameters", "_buffers"}
_amp = torch.amp.autocast_mode
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


@dataclass(frozen=True)
class _Behind:
    """Holds a graph where it is no submodule: its constants are no buffers of the model."""

    graph: torch.fx.GraphModule


class LiftedGraph(torch.nn.Module):
    """``graph`` as a module of its inputs, without its checkpoints: the plan decides what is computed again. Parameters
    and buffers have the names of the model's. Sizes that Dynamo made arguments are read from the inputs that have them;
    numbers that it made tensors (with ``dynamic=True``, a layer's ``eps``) are numbers.
    ``has_checkpoints``, ``casts``: whether ``graph`` has any, and any ``with torch.autocast``."""

    def __init__(self, graph: torch.fx.GraphModule, args: Sequence[Any]) -> None:
        """``args``: of a call of ``graph``; what is a parameter among them tells which are."""
        super().__init__()
        self.has_checkpoints = any(node.target is _CHECKPOINT for node in graph.graph.nodes)
        self.casts = _has_autocast(graph)
        if self.has_checkpoints:
            graph = _without_checkpoints(graph)
        self._numbers = _numbers(graph, args)
        if self._numbers:
            graph = _with_numbers(graph, self._numbers)
        self._behind = _Behind(_with_own_autocast(graph) if self.casts else graph)
        self._places: list[tuple[str, str]] = []
        self._sizes = _sizes(graph, args)
        for position, (node, value) in enumerate(zip(_placeholders(graph), args, strict=True)):
            source = getattr(getattr(node, "_dynamo_source", None), "name", "")
            if isinstance(value, torch.nn.Parameter):
                place = PARAMETER, self._free_name(source, node.name)
            elif isinstance(value, torch.Tensor) and "._buffers[" in source:
                place = BUFFER, self._free_name(source, node.name)
            else:
                place = SIZE if position in self._sizes else INPUT, ""
            self._places.append(place)
            self._put(place, value)

    def _get_name(self) -> str:  # torch's name for what a module is called
        return "the compiled model"

    def _free_name(self, source: str, otherwise: str) -> str:
        """``block.0.weight`` of ``L['self']._modules['block']._modules['0']._parameters['weight']``."""
        parts = [text or number for text, number in _PART.findall(source)]
        _, *path = [re.sub(r"\W", "_", part) for part in parts if part not in _NO_PART] or [""]
        return ".".join(path) if path and self._is_free(path) else f"{otherwise}_{len(self._places)}"

    def _is_free(self, path: Sequence[str]) -> bool:
        module: torch.nn.Module = self
        for part in path[:-1]:
            below = module._modules.get(part)
            if below is None:
                return not hasattr(module, part)
            module = below
        return not hasattr(module, path[-1])

    def _put(self, place: tuple[str, str], value: Any) -> None:
        kind, name = place
        if kind in (PARAMETER, BUFFER):
            _hold(self, name, value)

    def inputs(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs among the arguments of a call; its parameters and buffers become this module's."""
        for place, value in zip(self._places, args, strict=True):
            self._put(place, value)
        return tuple(
            value.item() if position in self._numbers else value
            for position, ((kind, _), value) in enumerate(zip(self._places, args, strict=True))
            if kind == INPUT
        )

    def forward(self, *inputs: Any) -> Any:
        """What the graph returns."""
        given, args = iter(inputs), list[Any]()
        for kind, name in self._places:
            args.append(next(given) if kind == INPUT else None if kind == SIZE else _attribute(self, name))
        for position, (other, axis) in self._sizes.items():
            args[position] = args[other].shape[axis]
        return self._behind.graph.forward(*args)

    def unlifted(self) -> torch.fx.GraphModule:
        """A copy of the graph that takes the inputs alone: parameters and buffers are attributes of it, under the same
        names as here. What Dynamo noted of its nodes stays, but for the tensors that it traced with."""
        graph = copy.deepcopy(self._behind.graph.graph)
        root = torch.nn.Module()  # which the new one takes its attributes from, in order
        for node in graph.nodes:
            node.meta = {key: value for key, value in node.meta.items() if key not in ("example_value", "val")}
            if node.op in ("get_attr", "call_module"):
                _hold(root, str(node.target), _attribute(self._behind.graph, str(node.target)))
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        after = placeholders[-1].next if placeholders else None
        for position, (node, (kind, name)) in enumerate(zip(placeholders, self._places, strict=True)):
            if kind == SIZE:
                other, axis = self._sizes[position]
                with graph.inserting_before(after):
                    node.replace_all_uses_with(
                        graph.call_function(torch.ops.aten.sym_size.int, (placeholders[other], axis))
                    )
                graph.erase_node(node)
            elif kind != INPUT:
                with graph.inserting_before(node):
                    node.replace_all_uses_with(graph.get_attr(name))
                graph.erase_node(node)
                _hold(root, name, _attribute(self, name))
        return torch.fx.GraphModule(root, graph)


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _sizes(module: torch.fx.GraphModule, args: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Of arguments that are sizes: the position of an input that has this size, and the axis. Others are not in it."""
    found: dict[Any, tuple[int, int]] = {}
    nodes = _placeholders(module)
    traced = [node.meta.get("example_value") for node in nodes]
    for position, (example, value) in enumerate(zip(traced, args, strict=True)):
        if isinstance(example, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            for axis, size in enumerate(example.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(size.node.expr, (position, axis))
    return {
        position: found[example.node.expr]
        for position, example in enumerate(traced)
        if isinstance(example, torch.SymInt) and example.node.expr in found
    }


def _numbers(module: torch.fx.GraphModule, args: Sequence[Any]) -> frozenset[int]:
    """Positions of arguments that are floats of Python, which Dynamo has made tensors of and takes ``item()`` of."""
    return frozenset(
        position
        for position, (node, value) in enumerate(zip(_placeholders(module), args, strict=True))
        if isinstance(value, torch.Tensor)
        and (value.dim(), value.dtype, value.requires_grad) == (0, torch.float64, False)
        and node.users
        and all((user.op, user.target) == ("call_method", "item") for user in node.users)
    )


def _with_numbers(original: torch.fx.GraphModule, numbers: frozenset[int]) -> torch.fx.GraphModule:
    """A copy that is given these arguments as numbers."""
    module = torch.fx.GraphModule(original, copy.deepcopy(original.graph))
    for position, node in enumerate(_placeholders(module)):
        if position in numbers:
            for user in list(node.users):
                user.replace_all_uses_with(node)
                module.graph.erase_node(user)
    module.recompile()
    return module


def _graphs(module: torch.fx.GraphModule) -> list[torch.fx.Graph]:
    """Its graph, and those of the functions that operators of it take."""
    return [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]


def _has_autocast(module: torch.fx.GraphModule) -> bool:
    return any(node.target is _amp._enter_autocast for graph in _graphs(module) for node in graph.nodes)


def _enter(*state: Any) -> torch.autocast:
    """What torch's own function does but while it is traced: then it notes the call, and casts nothing."""
    mode = torch.autocast(*state)
    mode.__enter__()
    return mode


def _exit(mode: torch.autocast) -> None:
    mode.__exit__(None, None, None)


def _with_own_autocast(original: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that enters autocast as the model does."""
    module = copy.deepcopy(original)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if node.target in (_amp._enter_autocast, _amp._exit_autocast):
                    node.target = _enter if node.target is _amp._enter_autocast else _exit
            part.recompile()
    return module


def _without_checkpoints(original: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy with the content of checkpoints in their places."""
    module = torch.fx.GraphModule(original, copy.deepcopy(original.graph))
    graph = module.graph
    for node in [node for node in graph.nodes if node.target is _CHECKPOINT]:
        body = _without_checkpoints(_attribute(module, str(node.args[0].target)))
        given: dict[Any, Any] = dict(zip(_placeholders(body), node.args[1:], strict=True))
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


def _hold(module: torch.nn.Module, target: str, value: Any) -> None:
    *path, last = target.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    if isinstance(value, torch.nn.Parameter):
        module._parameters[last] = value
    elif isinstance(value, torch.Tensor):
        module._buffers[last] = value
    else:
        setattr(module, last, value)


def _attribute(module: Any, target: str) -> Any:
    for part in target.split("."):
        module = getattr(module, part)
    return module
