"""Gradients that eager does not have: an island has used none of what leads to them (an expert without tokens).

A plan has zeros for them, which an optimiser would use: momentum, weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        for op in graph.backward:
            derived = tuple(name for name in operator_inputs(op) if name in self._made or name in self._begin)
            for position, name in enumerate(op.outputs if derived else ()):
                if name is not None:
                    self._made[name] = op.name, position, derived
        self._known: dict[str, bool] = {}

    def forget(self) -> None:
        """Before a pass."""
        self._known = dict.fromkeys(self._begin, False)

    def has(self, gradient: str) -> bool:
        """Whether eager has none. ``gradient``: a value that the pass has made."""
        if gradient not in self._made:
            return False
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
