"""``.grad`` of a module's parameters as sources of a step that adds its gradients to them."""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from monet.base.graph import Graph, is_reached, tangents_behind
from monet.errors import ExecutionError
from monet.executor import parallel
from monet.executor.planned_step import owner_of
from monet.step.training_step.accumulation import Accumulated


class Accumulator:
    """Hands a step the gradients that exist, makes those that do not, and puts them where they belong."""

    def __init__(self, model: torch.nn.Module, accumulated: Accumulated) -> None:
        self._totals = accumulated.totals
        self._owners = {name: owner_of(model, live.target) for name, live in accumulated.totals.items()}
        self._graph: Graph = accumulated.captured.graph
        behind = tangents_behind(self._graph)
        self._behind = {name: behind.get(gradient, frozenset()) for name, gradient in accumulated.gradient_of.items()}

    def check(self) -> None:
        """Raises ``ExecutionError`` where a parameter has hooks on its gradient, which nothing would call, or inside of
        ``DistributedDataParallel``, whose hooks cannot be seen."""
        if parallel.active() is not None:
            raise ExecutionError(parallel.ACCUMULATES)
        for name in self._totals:
            parameter = self._parameter(name)
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise ExecutionError(
                    f"{self._totals[name].target} has gradient hooks, and a step planned with accumulate=True adds to "
                    ".grad itself and has no moment at which to call them; remove them, or plan without accumulate"
                )

    def begin(self, reached: Set[str]) -> dict[str, torch.Tensor]:
        """Source value → the tensor that the step adds its gradient to: the parameter's ``.grad``, or an empty tensor
        where there is none, which the step then overwrites.

        ``reached``: the tangents of the outputs that the loss depends on. The step adds only gradients that come from
        these.
        """
        tensors = {}
        for name, live in self._totals.items():
            total, value = self._parameter(name).grad, self._graph.values[name]
            live.fresh, live.reached = total is None, is_reached(self._graph, self._behind[name], reached)
            if total is None:
                total = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device)
            tensors[name] = total
        return tensors

    def end(self, totals: Mapping[str, torch.Tensor]) -> None:
        """Give the parameters that had no ``.grad`` their first gradients."""
        for name, live in self._totals.items():
            if live.fresh and live.reached:
                self._parameter(name).grad = totals[name]

    def _parameter(self, name: str) -> torch.Tensor:
        owner, key = self._owners[name]
        parameter = owner._parameters[key]
        assert parameter is not None
        return parameter
