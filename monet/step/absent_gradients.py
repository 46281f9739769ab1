"""Gradients that eager does not have: an island has used none of what leads to them (an expert without tokens).

A plan has zeros for them, which an optimiser would use: momentum, weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from monet.base.graph import CONSTANT, Graph, Operator, operator_inputs
from monet.ops.weight_update import LiveUpdate, ParameterUpdate
from monet.step.training_step.accumulation import Accumulate, LiveGradient
from monet.step.training_step.updates import CLIPPED, LOSS_GRADIENT

if TYPE_CHECKING:
    from monet.capture.islands.island import Derivation


class AbsentGradients:
    """Of one pass. ``derivations``: by operator, the islands' backward ones, which know what they had in it."""

    def __init__(self, graph: Graph, derivations: Mapping[str, Derivation]) -> None:
        self._derivations = derivations
        self._begin = {name for name in graph.tangents if name is not None}
        self._begin |= {s.value for s in graph.sources if s.kind == CONSTANT and s.target == LOSS_GRADIENT}
        self._made: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        """Value → its operator, its position there, and what it is derived from."""
        self._joins: set[str] = set()
        for op in graph.backward:
            derived = tuple(name for name in operator_inputs(op) if name in self._made or name in self._begin)
            if len(derived) > 1:
                self._joins.add(op.name)
            for position, name in enumerate(op.outputs if derived else ()):
                if name is not None:
                    self._made[name] = op.name, position, derived
        self._known: dict[str, bool] = {}
        self.forget()

    def forget(self, reached: Set[str] | None = None) -> None:
        """Before a pass. ``reached``: the tangents of the outputs that the loss depends on, None for all."""
        self._known = {name: reached is not None and name not in reached for name in self._begin}

    def has(self, gradient: str) -> bool:
        """Whether eager has none. ``gradient``: a tangent, or a value that the pass has made."""
        if gradient not in self._made:
            return self._known.get(gradient, False)
        waiting = [gradient]
        while waiting:
            name = waiting[-1]
            if name in self._known:
                waiting.pop()
                continue
            node, position, derived = self._made[name]
            of = self._derivations.get(node)
            unknown = [other for other in derived if other not in self._known]
            if of is not None and position in of.absent:
                self._known[name] = True
            elif unknown:
                waiting += unknown
            else:
                self._known[name] = all(self._known[other] for other in derived)
        return self._known[gradient]

    def joins(self, node: str) -> bool:
        """Whether the operator takes several gradients, as a sum does."""
        return node in self._joins

    def clear(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        """Those that eager does not have are zeros, whatever the zeros that stand for them have come to: a product with
        an infinite derivative is NaN."""
        for name, tensor in zip(names, tensors, strict=True):
            if self.has(name) and 0 not in tensor.stride():
                tensor.zero_()


@dataclass(frozen=True, slots=True)
class Joining:
    """An operator that takes several gradients. ``names``: of the tensors among its arguments."""

    call: Callable[..., Any]
    names: tuple[str, ...]
    absent: AbsentGradients

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.absent.clear(self.names, [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)])
        return self.call(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class IfPresent:
    """A weight update, or a sum of gradients, that is left out where eager has no ``gradient``. Its first argument is
    told."""

    call: Callable[..., Any]
    gradient: str
    absent: AbsentGradients

    def __call__(self, live: LiveUpdate | LiveGradient, *tensors: Any) -> None:
        live.reached = live.reached and not self.absent.has(self.gradient)
        if live.reached:
            self.call(live, *tensors)


def gradient_used_by(operator: Operator) -> str | None:
    """The value that a weight update or a sum of gradients uses, before it was clipped; None for other operators."""
    if not isinstance(operator.target, ParameterUpdate | Accumulate):
        return None
    name: str = operator.args[2].name
    return name.removeprefix(CLIPPED)
