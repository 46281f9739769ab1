"""Implementations of a model's islands: parts that run as they are inside of a plan, see ``monet.capture.islands``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from monet.base.graph import Graph, references
from monet.base.measurement import Measurement
from monet.capture.islands.sparse_gradients import anchored_sources
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.step.absent_gradients import AbsentGradients, IfPresent, Joining, gradient_used_by

if TYPE_CHECKING:
    from monet.capture.islands.island import Derivation, Island


def island_costs(catalogue: Catalogue, islands: Mapping[str, Island]) -> dict[str, Measurement]:
    """By signature: what the islands' operators ask the arena for, which is their results, and the seconds that they
    took when they were tried."""
    from monet.capture.islands.binding import island_call, island_of

    found: dict[str, Measurement] = {}
    bench = Bench(device=catalogue.graph.device)
    for run in implementations(catalogue):
        island = island_of(run.call, run.args, islands)
        key = signature(run, catalogue.values)
        call = None if island is None else island_call(run.call, run.args, islands)
        if island is None or call is None or key in found:
            continue
        island.rehearsed = True
        measured = bench.measure(replace(run, call=call), catalogue.values)
        island.rehearsed = False
        found[key] = replace(measured, time_s=island.forward_s if call == island.forward else island.backward_s)
    return found


def _of_its_own(islands: Mapping[str, Island]) -> dict[str, Island]:
    """The islands without calls under way: several plans of one model may each wait for a backward pass."""
    if not islands:
        return {}
    from monet.capture.islands.island import Beside

    beside = Beside()
    return {key: replace(island, beside=beside) for key, island in islands.items()}


def _sparse_parameters(graph: Graph, islands: Mapping[str, Island]) -> dict[str, list[tuple[Island, str]]]:
    """By source of a parameter with a sparse gradient, where that comes from: islands, and its names there."""
    from monet.capture.islands.binding import island_of

    anchored = anchored_sources(graph)
    found: dict[str, list[tuple[Island, str]]] = {}
    for op in graph.forward if anchored else ():
        island = island_of(op.target, op.args, islands)
        if island is not None:
            for name, ref in zip(island.parameters, op.args[0][len(island.arguments) :], strict=True):
                if ref.name in anchored and (island, name) not in found.setdefault(anchored[ref.name], []):
                    found[anchored[ref.name]].append((island, name))
    return found


class IslandCalls:
    """What runs in place of the islands' operators in one plan."""

    def __init__(self, graph: Graph, islands: Mapping[str, Island]) -> None:
        self.islands = _of_its_own(islands)
        self._graph = graph
        self._backward = {op.name: gradient_used_by(op) for op in graph.backward} if islands else {}
        self._derivations: dict[str, Derivation] = {}
        self._sparse = _sparse_parameters(graph, self.islands) if islands else {}
        self._absent = AbsentGradients(graph, self._derivations) if islands else None

    def bound(self, run: Implementation, node: str) -> Implementation:
        """``run``, of the operator ``node``, with what is to be called."""
        if self._absent is None:
            return run
        from monet.capture.islands.binding import island_call

        gradient = self._backward.get(node)
        if gradient is not None:
            return replace(run, call=IfPresent(run.call, gradient, self._absent))
        call: Callable[..., Any] | None = self._derivations.get(node) or island_call(run.call, run.args, self.islands)
        if call is None:
            return self._joining(run, node, self._absent)
        if node in self._backward:
            given, absent = [ref.name for ref in run.args[0]], self._absent
            self._derivations[node] = call  # type: ignore[assignment]
            self._derivations[node].lacks = lambda position: absent.has(given[position])
        return replace(run, call=call)

    @staticmethod
    def _joining(run: Implementation, node: str, absent: AbsentGradients) -> Implementation:
        if not absent.joins(node) or not isinstance(run.call, torch._ops.OpOverload):
            return run
        return replace(run, call=Joining(run.call, tuple(references(run.args)), absent))

    def forget(self) -> None:
        """Before a forward pass."""
        for island in self.islands.values():
            island.forget()
        if self._absent is not None:
            self._absent.forget()

    def begin_backward(self, reached: Set[str]) -> None:
        """``reached``: the tangents of the outputs that the loss depends on."""
        if self._absent is not None:
            self._absent.forget(reached)

    def has_gradient(self, source: str) -> bool:
        """Whether eager has one, of those that the pass has made."""
        return self._absent is None or not self._absent.has(self._graph.gradients[source])

    def with_sparse(self, gradients: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
        """By source, the gradients of a pass that has run, with those that no plan holds in place of what stands for
        them: sums of all that islands have, the caller's from here on."""
        found = dict(gradients)
        for source in self._sparse.keys() & found.keys():
            made = [island.taken_sparse(name) for island, name in self._sparse[source]]
            given = [gradient for gradient in made if gradient is not None]
            found[source] = sum(given[1:], start=given[0]) if given else None
        return found
