"""Autocast's cache of weights, in a traced module.

Eager casts a weight once in an autocast context, however often it is used there: the uses share one copy, and their
gradients add up in the copy's precision. Tracing turns the cache off, and would cast at each use and add the gradients
up in float32, which is another result. Here the cast becomes an operator of its own, shared as eager shares it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True)
class _Mode:
    """Autocast around a stretch of the graph."""

    device: str
    dtype: torch.dtype
    enabled: bool
    cache: bool

    @classmethod
    def now(cls, device: str) -> _Mode:
        enabled, cache = torch.is_autocast_enabled(device), torch.is_autocast_cache_enabled()
        return cls(device, torch.get_autocast_dtype(device), enabled, cache)


def share_casts(module: torch.fx.GraphModule, device: str) -> str:
    """Give each weight of ``module`` (of torch.export, traced in the state of autocast that is on now) one cast for
    each outermost autocast context that casts it more than once.

    A weight is what eager caches: a float32 leaf that requires a gradient. Inputs of the module count as leaves.
    Returns the name of a weight that several such contexts cast, which one around them would make one; else "".
    """
    return _Pass(module, _Mode.now(device)).run()


class _Pass:
    """One rewrite of the traced module ``root``, under the autocast ``ambient`` that is on around the whole step."""

    def __init__(self, root: torch.fx.GraphModule, ambient: _Mode) -> None:
        self.root = root
        self.ambient = ambient
        named = (*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False))
        self.leaves = dict(named)

    def run(self) -> str:
        first: dict[Any, torch.fx.Node] = {}  # by tensor: a tied weight has a node for each of its names
        weights = {
            node: first.setdefault(id(self.leaves[node.target]) if node.op == "get_attr" else node, node)
            for node in self.root.graph.nodes
            if self._is_weight(node)
        }
        if not weights:
            return ""
        if self.ambient.enabled:
            self._share(self._uses(self.root, self.ambient, weights))
            return ""
        apart = ""
        seen: set[tuple[torch.fx.Node, torch.dtype]] = set()  # each context inside the model has a cache of its own
        for node in list(self.root.graph.nodes):
            inner = _context(self.root, node)
            if inner is None:
                continue
            uses = [use.below(node) for use in self._uses_inside(*inner, node, weights)]
            self._share(uses)
            cast = [(use.weight, use.dtype) for use in uses]
            apart = apart or next((str(weight.target) for weight, dtype in cast if (weight, dtype) in seen), "")
            seen.update(cast)
        return apart

    def _is_weight(self, node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        if node.op == "get_attr":
            value = self.leaves.get(str(node.target))
        elif node.op != "placeholder":
            return False
        return isinstance(value, torch.Tensor) and value.requires_grad and value.dtype is torch.float32

    def _uses(
        self, module: torch.fx.GraphModule, mode: _Mode, weights: dict[torch.fx.Node, torch.fx.Node]
    ) -> list[_Use]:
        """Where weights are cast in ``module``; ``weights``: its nodes that hold one → the root's node."""
        uses: list[_Use] = []
        for node in module.graph.nodes:
            inner = _context(module, node)
            if inner is not None:
                uses += [use.below(node) for use in self._uses_inside(*inner, node, weights)]
            elif node.op == "call_function" and mode.enabled and mode.cache:
                for weight in node.all_input_nodes:
                    times = _casts(node, weight, mode) if weight in weights else 0
                    if times:
                        uses.append(_Use(weights[weight], mode.dtype, node, weight, (), times))
        return uses

    def _uses_inside(
        self,
        module: torch.fx.GraphModule,
        mode: _Mode,
        call: torch.fx.Node,
        weights: dict[torch.fx.Node, torch.fx.Node],
    ) -> list[_Use]:
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        passed = zip(placeholders, call.args[5:], strict=True)
        inner = {p: weights[a] for p, a in passed if isinstance(a, torch.fx.Node) and a in weights}
        return self._uses(module, mode, inner) if inner else []

    def _share(self, uses: Iterable[_Use]) -> None:
        grouped: dict[tuple[torch.fx.Node, torch.dtype], list[_Use]] = {}
        for use in uses:
            grouped.setdefault((use.weight, use.dtype), []).append(use)
        for (weight, dtype), shared in grouped.items():
            if sum(use.times for use in shared) < 2:
                continue  # the operator casts it itself, at the same place
            first = shared[0].calls[0] if shared[0].calls else shared[0].node
            with self.root.graph.inserting_before(first):
                cast = self.root.graph.call_function(aten.to.dtype, (weight, dtype))
                cast.meta["val"] = weight.meta["val"].to(dtype)
                if "stack_trace" in first.meta:
                    cast.meta["stack_trace"] = first.meta["stack_trace"]
            for use in shared:
                use.replace(cast)
        self.root.graph.lint()
        self.root.recompile()


@dataclass(frozen=True)
class _Use:
    """``node`` casts the root's ``weight``, which is ``local`` in the graph of ``node``. ``calls``: the calls of the
    graphs that ``node`` lies in, the outermost first. ``times``: how often it casts it, as a recurrent layer does at
    each element of a sequence."""

    weight: torch.fx.Node
    dtype: torch.dtype
    node: torch.fx.Node
    local: torch.fx.Node
    calls: tuple[torch.fx.Node, ...]
    times: int

    def below(self, call: torch.fx.Node) -> _Use:
        return replace(self, calls=(call, *self.calls))

    def replace(self, cast: torch.fx.Node) -> None:
        """Read the shared copy, which is passed on as one more argument of each graph on the way."""
        for call in self.calls:
            body = _body(call)
            if cast in call.args[5:]:
                at = call.args[5:].index(cast)
                cast = [node for node in body.graph.nodes if node.op == "placeholder"][at]
                continue
            call.args = (*call.args, cast)
            last = [node for node in body.graph.nodes if node.op == "placeholder"][-1]
            with body.graph.inserting_after(last):
                inside = body.graph.placeholder(f"{self.local.name}_cast")
                inside.meta["val"] = cast.meta["val"]
            body.recompile()
            cast = inside
        self.node.replace_input_with(self.local, cast)
        self.node.graph.owning_module.recompile()  # type: ignore[union-attr]


def _body(call: torch.fx.Node) -> torch.fx.GraphModule:
    owner, target = call.graph.owning_module, call.args[4]
    assert owner is not None and isinstance(target, torch.fx.Node)
    body = owner.get_submodule(str(target.target))
    assert isinstance(body, torch.fx.GraphModule)
    return body


def _context(module: torch.fx.GraphModule, node: torch.fx.Node) -> tuple[torch.fx.GraphModule, _Mode] | None:
    """The graph and the state of a ``with torch.autocast`` inside the model."""
    if node.op != "call_function" or node.target is not torch.ops.higher_order.wrap_with_autocast:
        return None
    device, dtype, enabled, cache = node.args[:4]
    dtype = dtype if dtype is not None else torch.get_autocast_dtype(str(device))
    return _body(node), _Mode(str(device), dtype, bool(enabled), cache is not False)  # type: ignore[arg-type]


class _Casts(TorchDispatchMode):
    """Notes which tensors are cast to ``dtype``."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype
        self.cast: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._to_copy.default and kwargs.get("dtype") is self.dtype:
            self.cast.append(args[0])
        return func(*args, **kwargs)


def _casts(node: torch.fx.Node, weight: torch.fx.Node, mode: _Mode) -> int:
    """How often this operator under autocast casts this argument: tried on the traced, fake tensors. A square casts it
    twice."""
    arguments: dict[torch.fx.Node, Any] = {n: n.meta.get("val") for n in node.all_input_nodes}
    probe = arguments[weight]
    if not isinstance(probe, torch._subclasses.FakeTensor):
        return 0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: arguments[n])
    autocast = torch.autocast(mode.device, dtype=mode.dtype, cache_enabled=False)
    with probe.fake_mode, torch.no_grad(), autocast, _Casts(mode.dtype) as casts:
        try:
            node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # tracing itself will say what is wrong with it
            return 0
    return sum(tensor is probe for tensor in casts.cast)
