"""Weight updates as operators of a captured step: gradients are then values like others, and die when they are used.

loss's tangent (1)  →  backward  →  gradient  →  update: parameter and state change in place
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from monet.base.graph import CONSTANT, PARAMETER, STATE, Graph, Operator, Ref, Source, Value, operator_inputs
from monet.capture import Captured
from monet.errors import ConfigError
from monet.ops.catalogue import Catalogue
from monet.ops.strides import reach
from monet.ops.weight_update import LiveUpdate, ParameterUpdate

aten = torch.ops.aten

UPDATE = "update "
"""Update operators are called this and the parameter's name."""
LOSS_GRADIENT = "gradient of the loss"
"""Its source is called this."""
CLIPPED = "clipped_"
"""A gradient that was clipped is called this and its own name."""


@dataclass(frozen=True)
class ParameterSlot:
    """A parameter that the step updates: its value in the graph, its name, and its place in the optimiser."""

    value: str
    target: str
    live: LiveUpdate


def parameter_slots(
    captured: Captured, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> list[ParameterSlot]:
    """The parameters that get a gradient, in the order of ``module.parameters()``, in which norms are added up.

    Raises ``ConfigError`` where one of them is not the optimiser's, or the optimiser has one that is not the module's.
    """
    group_of = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    names = {id(p): name for name, p in module.named_parameters()}
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in names]
    if strangers:
        raise ConfigError(
            f"the optimizer has {len(strangers)} parameters that are neither the model's nor the loss's, the first of "
            f"shape {tuple(strangers[0].shape)}; was the optimizer made for another copy of the model?"
        )
    slots = []
    rank = {name: n for n, name in enumerate(names.values())}
    sources = [source for source in captured.graph.sources if source.kind == PARAMETER]
    for source in sorted(sources, key=lambda source: rank.get(names[id(module.get_parameter(source.target))], 0)):
        if source.value not in captured.graph.gradients:
            continue
        parameter = module.get_parameter(source.target)
        index = group_of.get(id(parameter))
        if index is None:
            raise ConfigError(
                f"parameter {source.target} requires a gradient, and the optimizer does not have it; "
                "add it to the optimizer, or set requires_grad_(False)"
            )
        slots.append(ParameterSlot(source.value, source.target, LiveUpdate(optimizer, index, parameter)))
    return slots


def with_unit_tangent(captured: Captured) -> Captured:
    """The step whose first output is a loss: its tangent is the constant 1, and no gradient leaves or enters.

    Raises ``ConfigError`` where that output is no scalar that depends on a parameter.
    """
    graph = captured.graph
    loss, tangent = graph.outputs[0], graph.tangents[0]
    if loss is None or tangent is None:
        raise ConfigError("the loss does not depend on any parameter that requires a gradient")
    value = graph.values[tangent]
    if value.shape != ():
        raise ConfigError(f"the loss has shape {value.shape}; loss_fn must return a scalar (its mean or sum)")
    source = Source(tangent, CONSTANT, LOSS_GRADIENT, False)
    constants = {**captured.constants, LOSS_GRADIENT: torch.ones((), dtype=value.dtype, device=value.device)}
    changed = replace(graph, sources=(*graph.sources, source), tangents=tuple(None for _ in graph.tangents))
    return replace(captured, graph=changed, constants=constants)


def with_updates(
    graph: Graph, slots: Sequence[ParameterSlot], offered: Catalogue, *, clip_grad_norm: float | None
) -> Graph:
    """The graph with an update for every gradient, each as early as possible.

    ``offered``: the graph's implementations. A parameter is updated after the last operator that may read it, and after
    the last that may read a value which would have to be computed from it again. ``clip_grad_norm``: gradients are
    scaled so that their total 2-norm is at most this, as by ``torch.nn.utils.clip_grad_norm_``; every update then waits
    for all gradients.
    """
    writer = _Writer(graph)
    free_after = _last_uses(graph, offered)
    gradients = {slot.value: graph.gradients[slot.value] for slot in slots}
    if clip_grad_norm is not None:
        gradients = writer.clip(gradients, clip_grad_norm)
    end = len(graph.backward)
    after: dict[int, list[Operator]] = {}
    for slot in slots:
        ready = writer.made_at.get(gradients[slot.value], end)
        position = max(ready, free_after.get(graph.storage(slot.value), -1))
        after.setdefault(position, []).append(writer.update(slot, gradients[slot.value]))
    backward = [*after.get(-1, ())]
    for position, op in enumerate(graph.backward):
        backward += [op, *after.get(position, ())]
    backward += [*writer.added, *after.get(end, ())]
    return replace(
        graph,
        values=writer.values,
        sources=(*graph.sources, *writer.sources),
        backward=tuple(backward),
        gradients={},
    )


def updates_last(graph: Graph) -> Graph:
    """The same step as eager runs it: all gradients first, then all updates."""
    ordered = sorted(graph.backward, key=lambda op: isinstance(op.target, ParameterUpdate))
    return replace(graph, backward=tuple(ordered))


def _last_uses(graph: Graph, offered: Catalogue) -> dict[str, int]:
    """Storage of a source → position of the last backward operator that may depend on what it holds now."""
    made_by = {saved.value.name: op for op, group in offered.intermediates.items() for saved in group}
    forward = {op.name: op for op in graph.forward}
    last: dict[str, int] = {}
    for position, op in enumerate(graph.backward):
        names = {*operator_inputs(op)}
        for implementation in offered.backward.get(op.name, {}).values():
            names.update(implementation.inputs())
        for name in names:
            # A saved intermediate is made from its operator's results, when they are made again too.
            results = [name] if name not in made_by else [n for n in forward[made_by[name]].outputs if n is not None]
            for result in results:
                last[graph.storage(result)] = position
    for op in reversed(graph.forward):
        depends = max((last.get(graph.storage(n), -1) for n in op.outputs if n is not None), default=-1)
        for name in operator_inputs(op):
            last[graph.storage(name)] = max(last.get(graph.storage(name), -1), depends)
    return last


class _Writer:
    """Values, sources and operators that updates add."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values = dict(graph.values)
        self.sources: list[Source] = []
        self.added: list[Operator] = []
        self.made_at: Mapping[str, int] = {
            name: position for position, op in enumerate(graph.backward) for name in op.outputs if name is not None
        }

    def update(self, slot: ParameterSlot, gradient: str) -> Operator:
        state = []
        for key, tensor in slot.live.empty_state.items():
            target = f"{slot.target}.{key}"
            name = f"state {target}"
            self._value(name, tuple(tensor.shape), tensor.stride(), tensor.dtype, slot.live.state_device(key))
            self.sources.append(Source(name, STATE, target, False))
            state.append(Ref(name))
        args = (slot.live, Ref(slot.value), Ref(gradient), *state)
        return _operator(f"{UPDATE}{slot.target}", slot.live.update, args, None)

    def clip(self, gradients: Mapping[str, str], most: float) -> dict[str, str]:
        """Operators for ``min(1, most / (norm + 1e-6)) * gradient``; the gradients' names after that."""
        kinds = {(self.values[name].dtype, self.values[name].device) for name in gradients.values()}
        if len(kinds) != 1:
            raise ConfigError("clip_grad_norm: gradients of several dtypes or devices cannot be clipped together")
        ((dtype, device),) = kinds
        count = 0

        def apply(target: torch._ops.OpOverload, *args: object, shape: tuple[int, ...] = ()) -> Ref:
            nonlocal count
            name, count = f"clip_{count}", count + 1
            self._value(name, shape, (1,) * len(shape), dtype, device)
            self.added.append(_operator(name, target, args, name))
            return Ref(name)

        norms = [apply(aten.linalg_vector_norm.default, Ref(name), 2.0) for name in gradients.values()]
        stacked = apply(aten.stack.default, norms, shape=(len(norms),))
        total = apply(aten.linalg_vector_norm.default, stacked, 2.0)
        inverse = apply(aten.reciprocal.default, apply(aten.add.Tensor, total, 1e-6))
        scale = apply(aten.clamp.default, apply(aten.mul.Tensor, inverse, most), None, 1.0)
        clipped = {}
        for source, gradient in gradients.items():
            value = self.values[gradient]
            name = f"{CLIPPED}{gradient}"
            stride = torch.empty_like(torch.empty_strided(value.shape, value.stride, device="meta")).stride()
            self._value(name, value.shape, stride, dtype, device)
            self.added.append(_operator(name, aten.mul.Tensor, (Ref(gradient), scale), name))
            clipped[source] = name
        return clipped

    def _value(
        self, name: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        size = reach(shape, stride) * dtype.itemsize
        self.values[name] = Value(name, shape, stride, 0, dtype, device, name, size)


def _operator(name: str, target: object, args: tuple[object, ...], result: str | None) -> Operator:
    return Operator(
        name=name, target=target, args=args, kwargs=(), outputs=(result,), single=True, view=False, random=False,  # type: ignore[arg-type]
        where="",
    )  # fmt: skip
