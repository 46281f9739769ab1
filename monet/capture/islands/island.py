"""A module that runs as it is inside of a plan, in memory of PyTorch's own allocator.

Nothing of an island is kept between its two operators but its inputs: backward runs the module once more, with
gradients, and so has eager's numbers. What it allocates meanwhile is outside of the arena; the results are copied into
it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.capture.islands.operators import Geometry, empty_gradients, empty_results
from monet.capture.islands.state import generator_at, same_buffers
from monet.errors import ExecutionError
from monet.native import allocator


@dataclass(eq=False)
class Island:
    """``name``: the module's, as the model has it. ``key``: what its operators name. ``forward_of``: its forward, not
    yet replaced.

    ``in_spec``, ``literals``: of its arguments ``(args, kwargs)``, by position among the leaves; ``arguments``: dtypes
    and shapes of the tensors among them; ``out_spec``, ``out_literals``: of what it returns; ``geometry``: of the
    tensors in that, and of the generator's state where it is ``random``; ``derived``: which of them have a derivative.
    ``autocast``: whether it is on inside, and its dtype. ``parameters``: names of those that it has.

    ``outside_bytes``: the most that it has held beside the arena; ``forward_s``, ``backward_s``: the last
    seconds. ``absent``: after ``backward``, the positions among ``wanted`` that had no gradient, and got zeros.
    ``rehearsed``: its module is not called, and its results are undefined.
    """

    name: str
    key: str
    module: torch.nn.Module
    forward_of: Any
    in_spec: pytree.TreeSpec
    literals: Mapping[int, Any]
    arguments: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    parameters: tuple[str, ...]
    autocast: tuple[bool, torch.dtype]
    out_spec: pytree.TreeSpec | None = None
    out_literals: Mapping[int, Any] = field(default_factory=dict)
    geometry: Geometry = ()
    random: bool = False
    derived: tuple[bool, ...] = ()
    outside_bytes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    absent: frozenset[int] = frozenset()
    rehearsed: bool = False

    @property
    def tensor_count(self) -> int:
        """Of its arguments; its parameters come after these."""
        return len(self.arguments)

    def called(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module returns for these arguments, in the precision that it was planned in."""
        others = iter(tensors)
        leaves = [self.literals[i] if i in self.literals else next(others) for i in range(self.in_spec.num_leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        enabled, dtype = self.autocast
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            return self.forward_of(*args, **kwargs)

    def forward(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results, in new memory. Raises ``ExecutionError`` where they are others than planned."""
        return self._results(inputs, nullcontext())

    def again(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """``forward`` without a trace in the buffers: they have seen this batch."""
        return self._results(inputs, same_buffers(self.module))

    def _results(self, inputs: list[torch.Tensor], within: AbstractContextManager[None]) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        if not self.rehearsed:
            with self._outside(), within, torch.no_grad():
                began = time.perf_counter()
                state = [torch.get_rng_state()] if self.random else []
                results = [*self._tensors(self.called(inputs[: self.tensor_count])), *state]
                self.forward_s = time.perf_counter() - began
        made = empty_results(self.geometry)
        for place, result in zip(made, results, strict=False):
            place.copy_(result)
        return made

    def backward(
        self,
        inputs: list[torch.Tensor],
        gradients: list[torch.Tensor],
        states: list[torch.Tensor],
        outputs: list[int],
        wanted: list[int],
    ) -> list[torch.Tensor]:
        """As ``ISLAND_BACKWARD``. Raises ``ExecutionError`` as ``forward``."""
        found: Sequence[torch.Tensor | None] = []
        if not self.rehearsed:
            with self._outside():
                began = time.perf_counter()
                with same_buffers(self.module), generator_at(states), torch.enable_grad():
                    found = self._derived(inputs, gradients, outputs, wanted)
                self.backward_s = time.perf_counter() - began
            self.absent = frozenset(p for p, gradient in zip(wanted, found, strict=True) if gradient is None)
        made = empty_gradients(inputs, wanted)
        for place, gradient in zip(made, found, strict=False):
            if gradient is None:
                place.zero_()
            else:
                place.copy_(gradient)
        return made

    def _derived(
        self, inputs: list[torch.Tensor], gradients: list[torch.Tensor], outputs: list[int], wanted: list[int]
    ) -> Sequence[torch.Tensor | None]:
        count = self.tensor_count
        tensors = [tensor.detach().requires_grad_(i in wanted) for i, tensor in enumerate(inputs[:count])]
        own = dict(self.module.named_parameters())
        leaves = [tensors[i] if i < count else own[self.parameters[i - count]] for i in wanted]
        results = self._tensors(self.called(tensors))
        pairs = [(results[i], g) for i, g in zip(outputs, gradients, strict=True) if results[i].requires_grad]
        if not pairs:
            return [None] * len(wanted)
        reached, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(reached, leaves, given, allow_unused=True)
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in found):
            raise ExecutionError(f"{self.name}, which runs as it is inside of the plan, has a sparse gradient")
        return found

    def _tensors(self, returned: Any) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten(returned)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        planned = self.geometry[: len(self.geometry) - self.random]
        found = tuple((_name(t.dtype), tuple(t.shape)) for t in tensors)
        others = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
        shapes = tuple((dtype, tuple(shape)) for dtype, shape, _ in planned)
        if (spec, others, found) != (self.out_spec, self.out_literals, shapes):
            said = [" and ".join(f"{dtype} {list(shape)}" for dtype, shape, *_ in of) for of in (found, planned)]
            raise ExecutionError(
                f"{self.name}, which runs as it is inside of the plan, returned {said[0] or 'no tensor'}, and the plan "
                f"is for {said[1] or 'no tensor'}: plan again for such inputs, or call the model without a plan"
            )
        return tensors

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """A context in which requests are PyTorch's allocator's to serve."""
        if not allocator.available():
            yield
            return
        allocator.pause()
        try:
            yield
        finally:
            self.outside_bytes = max(self.outside_bytes, allocator.resume())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
