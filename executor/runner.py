"""Runs the generated functions of one plan over one arena, and guards the order in which they are used."""

from __future__ import annotations

import logging
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from monet.base.graph import Value, tangents_behind
from monet.base.sizes import Ranges
from monet.base.torch_versions import say_if_untested
from monet.base.vector_functions import find_kernels
from monet.capture import autocast
from monet.errors import ExecutionError, PlanMismatch
from monet.executor.arena_requests import arena_requests
from monet.executor.backward_parts import BackwardParts
from monet.executor.codegen import Generated, generate
from monet.executor.copying.checkpoint import Checkpoint
from monet.executor.copying.copies import copies_of
from monet.executor.places import Places
from monet.executor.varying import Varying
from monet.native import allocator, devices, gpu_libraries
from monet.ops.catalogue import Catalogue
from monet.ops.kernels.scales import smallest_scale
from monet.plans.format import WRITE
from monet.plans.plan import Plan
from monet.step.islands import IslandCalls

if TYPE_CHECKING:
    from monet.capture.islands.island import Island

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


def _no_arena(handle: int, step: int) -> None:
    """Stands in for ``monet_enter`` where there is no arena."""


class Pass:
    """A forward pass. Alive as long as its backward pass may still come: autograd's node holds it."""

    def __init__(self, generation: int) -> None:
        self.generation = generation


class Runner:
    """One plan, ready to run. ``arena`` is None where PyTorch's own allocator serves everything
    (no compiler, or a device without a native arena): the peak is then not the plan's."""

    def __init__(
        self,
        plan: Plan,
        catalogue: Catalogue,
        ranges: Ranges | None = None,
        islands: Mapping[str, Island] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """``ranges``: which sizes vary, where the plan is for more than one shape. ``islands``: by key, parts of the
        model that run as they are. ``checkpoint``: as of ``copies_of``."""
        say_if_untested()
        self.plan = plan
        self.graph = catalogue.graph
        self._device = self.graph.device
        devices.require_plannable(self._device)
        find_kernels()
        self.arena: allocator.Arena | None = None
        self.copies = copies_of(plan, self._is_inside, self._device, checkpoint)
        self.varying = None if ranges is None else Varying.of(plan, catalogue, ranges)
        self.places = Places.of(plan)
        self.islands = IslandCalls(self.graph, islands or {})
        self._generate = partial(
            generate, plan, catalogue, self.copies, varying=self.varying, places=self.places, islands=self.islands
        )
        self.code: Generated = self._generate()
        self._code_in_parts: dict[tuple[int, ...], Generated] = {}
        self._enter: Callable[[int, int], None] = _no_arena
        self._leave: Callable[[], None] = lambda: None
        self._handle = 0
        self._leaving = any(buffer.leaves for buffer in plan.buffers)
        self._with_crew = False
        library = devices.library(self._device)
        if library is not None:
            asked = arena_requests(plan)
            self._with_crew = asked.with_crew
            self.arena = devices.arena(self._device, asked.own, plan.arena_bytes, asked.crew, asked.leaves)
            self.places.arena = self.arena
            if self.varying is not None:
                self.varying.arena = self.arena
            self._enter, self._leave, self._handle = library.monet_enter, library.monet_leave, self.arena.handle
        # By source: the tangents that its gradient comes from.
        behind = tangents_behind(self.graph)
        self.tangents_behind = {s: behind.get(g, frozenset()) for s, g in self.graph.gradients.items()}
        position = {name: i for i, name in enumerate(self.code.forward_sources)}
        self._guards = [
            (guard, position[guard.scale], None if guard.shift is None else position[guard.shift])
            for guard in self.code.guards
        ]
        self.generation = 0
        self.held_bytes = 0  # of gradients, when the last forward pass began: they are beyond the plan's peak
        self._maker = {saved.value.name: op for op, made in catalogue.intermediates.items() for saved in made}
        self._busy = threading.Lock()
        self._reported = self._missed = False
        self._pass: Callable[[], Pass | None] = lambda: None
        self._under_way: Callable[[], BackwardParts | None] = lambda: None

    def _is_inside(self, pointer: int) -> bool:
        return self.arena is not None and self.arena.contains(pointer)

    def begun(self, generation: int) -> Pass:
        """The forward pass of this number, for whoever may call its backward pass to hold."""
        begun = Pass(generation)
        self._pass = weakref.ref(begun)
        return begun

    @property
    def is_pending(self) -> bool:
        """Whether a forward pass still waits for its backward pass, or another thread is inside of a pass: another
        forward pass now would overwrite it, or be refused."""
        last, parts = self._pass(), self._under_way()
        return (
            self._busy.locked()
            or (last is not None and last.generation == self.generation)
            or (parts is not None and parts.is_open)
        )

    def code_in_parts(self, part_bytes: tuple[int, ...]) -> Generated:
        """The same code with a backward pass in parts, see ``monet.executor.gradient_parts``."""
        code = self._code_in_parts.get(part_bytes)
        if code is None:
            code = self._code_in_parts[part_bytes] = self._generate(part_bytes)
        return code

    def forward(self, sources: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor], int]:
        """Outputs, activations for the backward pass, and the number of this forward pass.

        It overwrites what an earlier forward pass left for its backward pass, and nothing else: from gradients that
        somebody still holds the arena has moved away.
        """
        self._check_process()
        with self._alone():
            self._give_up_parts()
            self._settle_copies()
            self.islands.forget()
            gpu_libraries.make_ready(self._device)
            if self.arena is not None:
                self.held_bytes = self.arena.ready()
            self._take_shape(sources)
            self._gather_crew()
            self.check_guards(sources)
            self.generation += 1
            try:
                outputs, activations = self._run(
                    self.code, lambda: self.code.forward(self._enter, self._handle, sources)
                )
            except BaseException:
                self.generation += 1
                raise
        return outputs, activations, self.generation

    def _take_shape(self, sources: Sequence[torch.Tensor]) -> None:
        """Sizes and requests are those of this call from here on."""
        if self.varying is None:
            return
        requests = self.varying.enter(self.varying.calls.of(sources))
        if requests is not None and self.arena is not None:
            self.arena.resize(requests, self.varying.upper)
            self._reported = self._missed  # each shape is looked at, until one is told

    def value(self, name: str) -> Value:
        """A source or tangent of the graph, at the shape of the last call."""
        if self.varying is None:
            return self.graph.values[name]
        return self.varying.calls.values(self.varying.shape)[name]

    def whole(self, sources: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs of a step that has its own loss and updates. Called where autograd records nothing."""
        outputs, _, _ = self.forward(sources)
        if not self._reported:
            self._check_service(outputs)
        self._check_islands()
        return outputs

    def backward(
        self,
        generation: int,
        kept: Sequence[torch.Tensor],
        activations: list[torch.Tensor],
        tangents: Sequence[torch.Tensor],
    ) -> Mapping[str, torch.Tensor]:
        """Gradients by source. Each forward pass has one backward pass, before the next forward pass."""
        self._require(generation)
        with self._alone():
            self._gather_crew()
            self.generation += 1
            gradients = self._run(
                self.code, lambda: self.code.backward(self._enter, self._handle, kept, activations, tangents)
            )
        if not self._reported:
            self._check_service(() if self._leaving else gradients)  # else their memory is theirs until they are freed
        self._check_islands()
        return dict(zip(self.code.gradient_of, gradients, strict=True))

    def backward_in_parts(
        self,
        code: Generated,
        generation: int,
        kept: Sequence[torch.Tensor],
        activations: list[torch.Tensor],
        tangents: Sequence[torch.Tensor],
    ) -> BackwardParts:
        """``backward`` to be run part by part; ``code``: of ``code_in_parts``. Nothing has run yet."""
        self._require(generation)
        self.generation += 1
        values = code.backward(self._enter, self._handle, kept, activations, tangents)
        parts = BackwardParts(code, self.generation, values, self._settle_copies)
        self._under_way = weakref.ref(parts)
        return parts

    def part(self, parts: BackwardParts, number: int) -> dict[str, torch.Tensor]:
        """Gradients by source of the next part, which has this number; the caller alone holds them."""
        self._require(parts.generation)
        with self._alone():
            self._gather_crew()
            try:
                gradients = self._run(parts.code, lambda: parts.run(number))
            except BaseException:
                parts.close()
                raise
        if not parts.is_open:
            if not self._reported:
                self._check_service(() if self._leaving else gradients)
            self._check_islands()
        of = dict(zip(parts.code.parts[number], gradients, strict=True))
        gradients.clear()  # the generated function has the list, too
        return of

    def _require(self, generation: int) -> None:
        self._check_process()
        if generation != self.generation:
            raise ExecutionError(
                "this backward pass belongs to an earlier forward pass of the planned module, whose activations are "
                "overwritten, by a later forward pass or by a backward pass before this one (retain_graph keeps "
                "nothing of a plan): a planned module holds one step at a time. Call backward once, before the next "
                "forward, or give each use its own MonetModule (and its own budget)"
            )

    def _run(self, code: Generated, function: Callable[[], _Result]) -> _Result:
        """What ``function`` returns, which is of ``code`` and enters the arena."""
        try:
            with autocast.ignored():
                return function()
        except BaseException as error:
            self._refuse(error, code)
            raise
        finally:
            self._leave()

    def _give_up_parts(self) -> None:
        """Forget a backward pass that somebody else's exception has cut short between two parts: nothing of it is to
        be held when the arena is used anew."""
        parts = self._under_way()
        if parts is not None:
            parts.close()

    def _refuse(self, error: BaseException, code: Generated) -> None:
        """Clean up after an exception inside a step. One of an operator of monet's knows shapes only: it is raised anew
        with the step, and with the line of the model that the step belongs to. PyTorch's are raised as in eager."""
        reached = code.step_of(error)
        step = reached if isinstance(error, ExecutionError) else None
        self._note_lost(reached)
        self._settle_copies()
        # The frames' variables lie in the arena, and whoever keeps the traceback may keep it longer than the arena.
        traceback.clear_frames(error.__traceback__)
        if step is None:
            return
        kind, node = self.plan.steps[step].kind, self.plan.steps[step].node
        operator = self._maker.get(node, node)
        where = next((op.where for op in (*self.graph.forward, *self.graph.backward) if op.name == operator), "")
        raise ExecutionError(f"step {step} ({kind} {node}): {error}" + (f"\n{where}" if where else "")) from error

    def _note_lost(self, reached: int | None) -> None:
        """Of state that is carried: what its update has changed, or was about to, and no copy was issued of."""
        if self.copies is None or reached is None:
            return
        updated: dict[str, int] = {}  # value → the step that changes it
        for k, step in enumerate(self.plan.steps):
            if step.kind == "update":
                updated.update(dict.fromkeys(step.reads, k))
            elif step.kind == WRITE and step.place is not None and step.place in self.copies.carried:
                name = self.copies.carried[step.place]
                if updated[name] <= reached <= k:
                    self.copies.lost.add(name)

    def _check_process(self) -> None:
        if self.copies is not None:
            self.copies.check_process()

    def _settle_copies(self) -> None:
        if self.copies is not None:
            self.copies.settle()

    def _gather_crew(self) -> None:
        if self._with_crew:
            allocator.gather_crew()

    def _alone(self) -> Any:
        return _Exclusive(self._busy)

    def check_guards(self, sources: Sequence[torch.Tensor]) -> None:
        """Raises ``PlanMismatch`` where a scale that an implementation divides by is not large enough any more."""
        for guard, scale, shift in self._guards:
            smallest = smallest_scale(sources[scale], None if shift is None else sources[shift])
            if not smallest >= guard.least:
                target = next(s.target for s in self.graph.sources if s.value == guard.scale)
                raise PlanMismatch(
                    f"{target} has a magnitude of {smallest:.3g} (over its shift, where that is above 1), and the "
                    f"plan takes a gradient from an output divided by it, which needs at least {guard.least:g}; plan "
                    "again, which then avoids it, or with --exact (exact=True)"
                )

    def _check_service(self, leaving: Sequence[torch.Tensor]) -> None:
        """After the first whole step: every request was as planned, and nothing of ``leaving`` lies in the arena."""
        self._reported = True
        self.places.seen()
        if self.arena is None:
            return
        if any(self.arena.contains(tensor.data_ptr()) for tensor in leaving):
            raise ExecutionError("internal: a result lies in the arena, where the next step would overwrite it")
        statistics = self.arena.statistics()
        if statistics.misses:
            self._missed = True
            step, number, asked, planned = statistics.first_miss
            logger.warning(
                "%d memory requests were not as planned and went to PyTorch's allocator; the first: step %d (%s), "
                "request %d asked %d bytes, planned %d. The peak may be above the promise",
                statistics.misses, step, self.plan.steps[step].node, number, asked, planned,
            )  # fmt: skip

    def _check_islands(self) -> None:
        """Says once where one has held more than the plan counts: how much may depend on values."""
        if not self.islands.islands:
            return
        first = next(iter(self.islands.islands.values()))
        most, counted = first.beside.most_bytes, self.plan.fixed.get("islands", 0)
        if self.arena is not None and most > counted and not self._missed:
            self._missed = True
            logger.warning(
                "%s and all else that runs as it is inside of the plan has held %d bytes beside the arena, %d more "
                "than the plan counts: the peak may be above the promise",
                first.name, most, most - counted,
            )  # fmt: skip


class _Exclusive:
    """A lock that refuses instead of waiting: two threads cannot share one arena."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise ExecutionError("two threads run the same planned module at once; give each its own MonetModule")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
