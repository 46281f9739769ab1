"""A module that runs as it is inside of a plan, once in each step, in memory of PyTorch's own allocator.

Autograd records it as in eager, on copies of its arguments, whose own memory is the plan's; what autograd keeps for the
backward pass is outside of the arena, too. Results and gradients are copied into the arena.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.capture.guards.caches_of_keys import without_caches_of_keys
from monet.capture.islands.operators import TOKEN, Geometry, empty_results, geometry_from
from monet.capture.islands.result_sizes import ResultRules, geometry_by
from monet.capture.islands.state import Described, parted
from monet.errors import ExecutionError
from monet.native import allocator


@dataclass
class Beside:
    """What the islands of one model hold beside the arena, in bytes: now, and at most so far."""

    now_bytes: int = 0
    most_bytes: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A context in which requests are PyTorch's allocator's to serve."""
        if not allocator.available():
            yield
            return
        before = allocator.live_bytes()
        allocator.pause()
        try:
            yield
        finally:
            self.most_bytes = max(self.most_bytes, self.now_bytes + allocator.resume())
            self.now_bytes += allocator.live_bytes() - before


@dataclass(frozen=True, slots=True)
class _Call:
    """What autograd knows of a call: the arguments' copies, and the results."""

    arguments: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]


@dataclass(eq=False)
class Island:
    """``name``: the module's, as the model has it. ``key``: what its operators name. ``forward_of``: its forward, not
    yet replaced.

    ``in_spec``, ``literals``: of its arguments ``(args, kwargs)``, by position among the leaves; ``arguments``: dtypes
    and shapes of the tensors among them; ``out_spec``, ``out_literals``: of what it returns; ``geometry``: of the
    tensors in that; ``derived``: which of these have a derivative; ``changed``: whether the model changes them, or the
    arguments, in place afterwards. ``rules``: what the shapes in ``geometry`` are where sizes vary.
    ``autocast``: whether it is on inside, and its dtype. ``parameters``: names of those that it has. ``wanted``: the
    arguments that take a gradient; None: no result of it does. ``sparse``: those of the parameters whose gradients are
    sparse: they are handed over as they are. ``recorded``: not where the model calls it under ``torch.no_grad``.
    ``foreign``: a parameter of another part whose values it reads, without a gradient; "" for none.

    ``forward_s``, ``backward_s``: the last seconds. ``rehearsed``: its module is not called, and its results are
    undefined.
    """

    name: str
    key: str
    module: torch.nn.Module
    forward_of: Any
    in_spec: pytree.TreeSpec
    literals: Mapping[int, Any]
    arguments: Described
    parameters: tuple[str, ...]
    autocast: tuple[bool, torch.dtype]
    beside: Beside
    out_spec: pytree.TreeSpec | None = None
    out_literals: Mapping[int, Any] = field(default_factory=dict)
    geometry: Geometry = ()
    derived: tuple[bool, ...] = ()
    changed: bool = False
    rules: ResultRules = ()
    wanted: frozenset[int] | None = None
    sparse: frozenset[str] = frozenset()
    recorded: bool = True
    foreign: str = ""
    forward_s: float = 0.0
    backward_s: float = 0.0
    rehearsed: bool = False
    _calls: dict[int, _Call] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)
    _sparse: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict, init=False)  # of a call, by its number

    def called(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module returns for these arguments, in the precision that it was planned in, and without a cache of
        keys and values, as all of the model is planned."""
        others = iter(tensors)
        leaves = [self.literals[i] if i in self.literals else next(others) for i in range(self.in_spec.num_leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        enabled, dtype = self.autocast
        with without_caches_of_keys(self.module), torch.autocast("cpu", dtype=dtype, enabled=enabled):
            return self.forward_of(*args, **kwargs)

    def forget(self) -> None:
        """Before a step: nothing of an earlier one is derived any more."""
        if self._calls or self._sparse:
            with self.beside.counted():
                self._calls.clear()
                self._sparse.clear()

    def forward(self, inputs: list[torch.Tensor], _key: str, kinds: str, sizes: list[int]) -> list[torch.Tensor]:
        """The results and the token, in new memory. Raises ``ExecutionError`` where they are others than planned."""
        results: Sequence[torch.Tensor] = ()
        self._count += 1
        if not self.rehearsed:
            with self.beside.counted():
                began = time.perf_counter()
                call = self._called(inputs[: len(self.arguments)], geometry_from(kinds, sizes)[:-1])
                results = [result.detach() for result in call.results]
                if self.wanted is not None:
                    self._calls[self._count] = call
                del call
                self.forward_s = time.perf_counter() - began
        made = empty_results(kinds, sizes)
        _copy(made, results)
        made[-1].fill_(self._count)
        if results and self.wanted is None:
            with self.beside.counted():
                results = ()
        return made

    def _called(self, given: Sequence[torch.Tensor], planned: Geometry) -> _Call:
        recorded = self.recorded and any(
            dtype.is_floating_point for dtype in (getattr(torch, name) for name, *_ in self.geometry)
        )
        floats = (i for i, tensor in enumerate(given) if tensor.is_floating_point())
        wanted = set(floats) if self.wanted is None else self.wanted
        arguments = [t.detach().clone().requires_grad_(i in wanted) for i, t in enumerate(given)] if recorded else given
        with torch.set_grad_enabled(recorded):
            results = self._tensors(self.called(arguments), planned)
        if any(result.requires_grad and not has for result, has in zip(results, self.derived, strict=True)):
            raise ExecutionError(f"{self.name}, {_WHERE} returned a tensor that had no derivative when it was planned")
        foreign = foreign_leaf(results, (*arguments, *self.module.parameters()))
        if foreign is not None:
            raise ExecutionError(f"{self.name}, {_WHERE} uses a parameter that is not its own: {tuple(foreign.shape)}")
        if self.changed and share_memory(arguments, results):
            raise ExecutionError(
                f"{self.name}, {_WHERE} returned a view of what it was given, and the model changes that in place "
                "later: return a clone of it"
            )
        return _Call(arguments, results)

    def backward(
        self,
        gradients: list[torch.Tensor],
        token: torch.Tensor,
        outputs: list[int],
        wanted: list[int],
        kinds: str,
        sizes: list[int],
    ) -> tuple[list[torch.Tensor], frozenset[int]]:
        """As ``ISLAND_BACKWARD``, and the positions among the results for which eager has no gradient: zeros."""
        found: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if not self.rehearsed:
            with self.beside.counted():
                began = time.perf_counter()
                call = self._calls.pop(int(token))
                found = self._derived(call, gradients, outputs, wanted, int(token))
                del call
                self.backward_s = time.perf_counter() - began
        made = empty_results(kinds, sizes)
        _copy(made, found)
        absent = frozenset(
            position
            for position in range(len(found))
            if found[position] is None and self._parameter(wanted[position]) not in self.sparse
        )
        if not self.rehearsed:
            with self.beside.counted():
                found = ()
        return made, absent

    def _derived(
        self, call: _Call, gradients: list[torch.Tensor], outputs: list[int], wanted: list[int], number: int
    ) -> Sequence[torch.Tensor | None]:
        count, own = len(self.arguments), dict(self.module.named_parameters())
        leaves = [call.arguments[i] if i < count else own[self.parameters[i - count]] for i in wanted]
        pairs = [(call.results[i], g) for i, g in zip(outputs, gradients, strict=True) if call.results[i].requires_grad]
        if not pairs:
            return [None] * len(wanted)
        reached, given = zip(*pairs, strict=True)
        with _without_hooks(own.values()):
            derived = torch.autograd.grad(reached, leaves, given, allow_unused=True)
        found: list[torch.Tensor | None] = list(derived)
        for position, gradient in enumerate(derived):
            parameter = self._parameter(wanted[position])
            if parameter in self.sparse and gradient is not None:
                # Its values may be the gradient that it is made of, whose memory is the plan's.
                self._sparse[parameter, number], found[position] = gradient.clone(), None
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in found):
            raise ExecutionError(f"{self.name}, {_WHERE} has a sparse gradient")
        return found

    def _parameter(self, position: int) -> str:
        """Its name; "" for an argument."""
        count = len(self.arguments)
        return self.parameters[position - count] if position >= count else ""

    def taken_sparse(self, parameter: str) -> torch.Tensor | None:
        """The sparse gradient of the backward pass, which is the caller's from here on; None where it has none. That of
        the last call comes first, as where autograd adds them up."""
        numbers = sorted((number for name, number in self._sparse if name == parameter), reverse=True)
        if not numbers:
            return None
        with self.beside.counted():
            taken = self._sparse.pop((parameter, numbers[0]))
            for number in numbers[1:]:
                taken = taken + self._sparse.pop((parameter, number))
        self.beside.now_bytes -= _held_bytes(taken)
        return taken

    def _tensors(self, returned: Any, planned: Geometry) -> list[torch.Tensor]:
        tensors, others, spec = parted(returned)
        found = tuple((str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)
        shapes = tuple((dtype, tuple(shape)) for dtype, shape, _ in planned)
        if (spec, others, found) != (self.out_spec, self.out_literals, shapes):
            said = [" and ".join(f"{dtype} {list(shape)}" for dtype, shape in of) for of in (found, shapes)]
            if found == shapes:
                said = [f"{spec} with {others}", f"{self.out_spec} with {self.out_literals}"]
            raise ExecutionError(
                f"{self.name}, {_WHERE} returned {said[0] or 'no tensor'}, and the plan is for {said[1] or 'none'}: "
                "plan again for such inputs, or call the model without a plan"
            )
        return tensors

    def results_for(self, tensors: Sequence[torch.Tensor]) -> Geometry:
        """Of the forward operator's results for these arguments."""
        return (*geometry_by(self.rules, self.geometry, tensors), TOKEN)


def _copy(places: Sequence[torch.Tensor], found: Sequence[torch.Tensor | None]) -> None:
    """Zeros for None. A function of its own: what it names is let go when it ends, and counted then."""
    for place, tensor in zip(places, found, strict=False):
        if tensor is None:
            place.zero_()
        else:
            place.copy_(tensor)


_WHERE = "which runs as it is inside of the plan,"


class Derivation:
    """One backward operator of an island. ``absent``: after it has run, the positions among its results for which eager
    has no gradient. ``lacks``: whether eager has none at a position among those that it is given."""

    def __init__(self, island: Island) -> None:
        self.island = island
        self.absent: frozenset[int] = frozenset()
        self.lacks: Callable[[int], bool] = lambda position: False

    def __call__(
        self,
        gradients: list[torch.Tensor],
        token: torch.Tensor,
        _key: str,
        outputs: list[int],
        wanted: list[int],
        kinds: str,
        sizes: list[int],
    ) -> list[torch.Tensor]:
        there = [position for position in range(len(gradients)) if not self.lacks(position)]
        given, of = [gradients[position] for position in there], [outputs[position] for position in there]
        made, self.absent = self.island.backward(given, token, of, wanted, kinds, sizes)
        return made


def _held_bytes(gradient: torch.Tensor) -> int:
    if gradient.layout is not torch.sparse_coo:
        return gradient.nbytes
    # A sum of two has memory for all rows of both, however many are one in it.
    return gradient._indices().untyped_storage().nbytes() + gradient._values().untyped_storage().nbytes()


def share_memory(arguments: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> bool:
    """Whether a result shares memory with an argument or another result."""
    held = [t.untyped_storage().data_ptr() for t in results if t.numel()]
    return len(set(held)) < len(held) or not set(held).isdisjoint(t.untyped_storage().data_ptr() for t in arguments)


def foreign_leaf(results: Sequence[torch.Tensor], known: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A tensor that the results have a gradient for and that is none of ``known``."""
    ids = {id(tensor) for tensor in known}
    queue, seen = [result.grad_fn for result in results if result.grad_fn is not None], set[Any]()
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and id(leaf) not in ids:
            return leaf
        queue += [before for before, _ in node.next_functions if before is not None]
    return None


@contextmanager
def _without_hooks(parameters: Any) -> Iterator[None]:
    """A context in which tensors' own hooks are not there: autograd calls them when it has the gradients."""
    held = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]
    for hooks, _ in held:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in held:
            hooks.update(before)
