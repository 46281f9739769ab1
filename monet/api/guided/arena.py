"""An arena for steps that no graph captures: the first step of a kind is recorded, later ones are served."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import ContextDecorator, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from monet.api.guided.placement import Placement, place
from monet.api.guided.report import GuidedReport
from monet.api.guided.requests import Requests
from monet.base.amounts import parse_byte_count
from monet.base.files.atomic import write_text_atomically
from monet.base.heap import trim
from monet.base.torch_versions import say_if_untested
from monet.errors import ConfigError, ExecutionError
from monet.native.allocator import live_bytes, uncounted_bytes
from monet.native.guided import MOST_REQUESTS, GuidedArena, Places, StepCounts

_log = logging.getLogger(__name__)
Function = TypeVar("Function", bound=Callable[..., Any])

MOST_PLANS = 8
"""Kinds of steps whose plans are kept, unless the caller says otherwise."""
LAYOUT_S = 1.0
"""Seconds of the layout of one plan, at most, unless the caller says otherwise."""
SETTLING_STEPS = 4
"""The first steps of a kind: any request that is not where it was planned is worth another plan, and a step that makes
fewer requests than those before it replaces what is known, since the first one may have made what the others find: an
optimiser's state."""
MISSED_SHARE = 0.01
"""Of a later step's requests: more of them elsewhere than planned, and lifetimes that changed are worth another plan
(Sekiyama et al. plan again where sizes grew only; that the order of releases may change is not in the paper)."""


_OPEN: set[ProfileGuidedArena] = set()
"""Arenas in whose steps a thread is: its requests go there, so they stay, whoever forgets them."""


@dataclass
class _Kind:
    """What is known of one kind of steps. ``planned``: what was known when it was last planned, and ``avoided`` what
    lay in the arena then. ``placement`` and ``places``: the plan in use, the same twice; None before there is one.
    ``steps``: how many there have been."""

    known: Requests | None = None
    planned: Requests | None = None
    avoided: tuple[tuple[int, int], ...] = ()
    placement: Placement | None = None
    places: Places | None = None
    steps: int = 0


class ProfileGuidedArena:
    """Makes steps find their memory where an earlier step of their kind has shown that it fits.

    Nothing depends on steps being alike: a place is given only where nothing lies that is still held, everything else
    is PyTorch's, correct and counted. No budget is promised. One thread is in a step at a time, and requests of its
    other threads (data loaders, the workers of parallel loops) are PyTorch's; two models that train beside each other
    take two arenas. Steps of several arenas may be nested: the inner one serves.

    See ``profile_guided`` for the arguments.
    """

    def __init__(self, limit_bytes: int, max_plans: int, layout_s: float) -> None:
        say_if_untested()
        self._uncounted_bytes = uncounted_bytes()
        self._limit_bytes = limit_bytes
        if 0 < limit_bytes <= self._uncounted_bytes + live_bytes():
            raise ConfigError(
                f"the limit of {limit_bytes:,} bytes is below the {self._uncounted_bytes + live_bytes():,} bytes that "
                "torch holds already"
            )
        self._arena = GuidedArena(limit_bytes - self._uncounted_bytes if limit_bytes else 0)
        self._max_plans, self._layout_s = max_plans, layout_s
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._open: _OpenStep | None = None
        self._steps = self._recorded = self._failed = self._plans = 0
        self._counts = StepCounts()
        self._layouts_s = 0.0

    def step(self, key: Hashable = None) -> GuidedStep:
        """The context of one training or inference step; also a decorator of a function that is one.

        ``key``: steps with equal keys are of one kind (a sequence length, training or evaluation) and share a plan; all
        plans share the arena. What is made in a step and still held at its end is PyTorch's.

        Entering raises ``ExecutionError`` where a step of this arena is open already.
        """
        return GuidedStep(self, key)

    def __reduce__(self) -> Any:
        raise ExecutionError("a profile-guided arena is neither copied nor pickled: make another one")

    def interrupt(self) -> None:
        """Requests are PyTorch's until ``resume``, and no part of the step's record: for parts of a step that vary
        (Sekiyama et al., section 4.4). Calls nest. Raises ``ExecutionError`` outside of a step of this thread."""
        step = self._own_step("interrupt")
        if step.interrupts == 0:
            self._arena.unbind(step.outer)
        step.interrupts += 1

    def resume(self) -> None:
        """Ends the last ``interrupt``. Raises ``ExecutionError`` where there is none."""
        step = self._own_step("resume")
        if step.interrupts == 0:
            raise ExecutionError("resume() without an interrupt()")
        step.interrupts -= 1
        if step.interrupts == 0:
            self._arena.bind()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """``interrupt`` and ``resume`` around a part of a step, errors included."""
        self.interrupt()
        try:
            yield
        finally:
            self.resume()

    def report(self) -> GuidedReport:
        """What has been done so far; ``str`` of it is for people."""
        largest = self._largest()
        return GuidedReport(
            steps=self._steps,
            recorded_steps=self._recorded,
            failed_steps=self._failed,
            kinds=len(self._kinds),
            **asdict(self._counts),
            plans=self._plans,
            layout_s=self._layouts_s,
            arena_bytes=0 if largest is None else largest.arena_bytes,
            bound_bytes=0 if largest is None else largest.bound_bytes,
            peak_bytes=self._arena.most_bytes + self._uncounted_bytes,
        )

    def html(self, path: str | Path) -> None:
        """Write a page that draws the arena, its requests over the step's time, into ``path``.

        Raises ``ExecutionError`` where there is no plan yet.
        """
        largest = self._largest()
        if largest is None:
            raise ExecutionError("there is no plan to draw yet: a plan is made after a whole step")
        from monet.api.guided.page import page  # jinja2 is for this alone

        write_text_atomically(Path(path), page(largest, self.report()))

    def _own_step(self, what: str) -> _OpenStep:
        if self._open is None or self._open.thread != threading.get_ident():
            raise ExecutionError(f"{what}() outside of a step of this thread")
        return self._open

    def _begin(self, key: Hashable) -> None:
        if self._open is not None:
            raise ExecutionError(
                "a step of this arena is open already: steps of one arena do not nest, and one thread is in it at a "
                "time; make another arena with monet.profile_guided()"
            )
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        while len(self._kinds) > self._max_plans:
            self._kinds.popitem(last=False)
        self._arena.begin(kind.places)
        self._open = _OpenStep(kind, threading.get_ident(), self._arena.bind())
        _OPEN.add(self)

    def _end(self, failed: bool) -> None:
        step = self._own_step("the end of a step")
        if step.interrupts == 0:
            self._arena.unbind(step.outer)
        counts = self._arena.end()
        self._open = None
        _OPEN.discard(self)
        if failed:
            self._failed += 1
            return
        kind = step.kind
        self._steps += 1
        kind.steps += 1
        if kind.places is None:
            self._recorded += 1
        else:
            self._counts += counts
        fewer = kind.known is not None and counts.requests < len(kind.known)
        if kind.places is None or counts.unforeseen or (fewer and kind.steps <= SETTLING_STEPS):
            self._learn(kind, counts)

    def _learn(self, kind: _Kind, counts: StepCounts) -> None:
        """Takes in what the step that just ended has shown, and plans anew where that is worth it."""
        if counts.requests >= MOST_REQUESTS:
            _log.warning("a step made more than %s requests: it is not planned", f"{MOST_REQUESTS:,}")
            return
        seen, known = Requests(*self._arena.trace()), kind.known
        settling = kind.steps <= SETTLING_STEPS
        kind.known = seen if known is None or (settling and len(seen) < len(known)) else known.merged(seen)
        if kind.planned is not None:
            grew = not np.array_equal(kind.known.bytes, kind.planned.bytes)
            strayed = settling or counts.unforeseen > MISSED_SHARE * counts.requests
            same = kind.known.equals(kind.planned) and kind.avoided == self._arena.held()
            if same or not (grew or strayed):
                return
        self._plan(kind, kind.known)

    def _plan(self, kind: _Kind, known: Requests) -> None:
        avoided = self._arena.held()
        placement = place(known, self._layout_s, avoided)
        kind.planned, kind.avoided = known, avoided  # not before: Ctrl-C may end the layout
        self._plans += 1
        self._layouts_s += placement.layout_s
        had = self._largest()
        had_bytes = 0 if had is None else had.arena_bytes
        # What the recorded step has freed is the system's again before the arena takes as much.
        trim()
        more_bytes = max(0, placement.arena_bytes - had_bytes)
        if self._limit_bytes and live_bytes() + self._uncounted_bytes + more_bytes > self._limit_bytes:
            _log.warning(
                "an arena of %s bytes would exceed the limit of %s bytes beside what is held between steps: the step "
                "goes on as before", f"{placement.arena_bytes:,}", f"{self._limit_bytes:,}",
            )  # fmt: skip
            return
        kind.placement, kind.places = placement, Places(known.bytes, placement.offsets)
        largest = self._largest()
        assert largest is not None
        self._arena.make_room(largest.arena_bytes)

    def _largest(self) -> Placement | None:
        """The plan in use that needs the largest arena."""
        plans = (kind.placement for kind in self._kinds.values() if kind.placement is not None)
        return max(plans, key=lambda plan: plan.arena_bytes, default=None)


@dataclass
class _OpenStep:
    """A step of ``kind`` in ``thread``. ``outer``: whose the thread's requests were before."""

    kind: _Kind
    thread: int
    outer: Any
    interrupts: int = 0


class GuidedStep(ContextDecorator):
    """The context of a step, and a decorator; the same one may be entered again and again."""

    def __init__(self, arena: ProfileGuidedArena, key: Hashable) -> None:
        self._arena, self._key = arena, key

    def __call__(self, function: Function) -> Function:
        """The function as a step. Raises ``ConfigError`` for one whose body does not run when it is called."""
        late = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_late(function) for is_late in late):
            raise ConfigError(
                f"{getattr(function, '__name__', function)} is a generator or a coroutine: its body runs after the "
                "step would be over; write `with arena.step():` inside of it"
            )
        return super().__call__(function)

    def __enter__(self) -> ProfileGuidedArena:
        self._arena._begin(self._key)
        return self._arena

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._arena._end(failed=kind is not None)


def profile_guided(
    limit: int | str | None = None, *, max_plans: int = MOST_PLANS, layout_s: float = LAYOUT_S
) -> ProfileGuidedArena:
    """An arena for steps that no graph captures (Sekiyama et al., "Profile-guided memory optimization for deep neural
    networks", 2018)::

        arena = monet.profile_guided()
        for batch in loader:
            with arena.step():
                loss = train_step(batch)
        print(arena.report())

    ``limit``: bytes (``"6GB"``) that torch may hold when a step requests something; a request beyond raises
    ``torch.OutOfMemoryError`` that names it, instead of the process being killed. ``max_plans``: kinds of steps
    (``step(key=...)``) whose plans are kept, those used last. ``layout_s``: seconds that the layout of a plan may take;
    plans are made at the end of a step, and no more once nothing new comes.

    Raises:
        ConfigError: a limit that is no number of bytes, or is below what torch holds already; no plans, no time.
        ExecutionError: there is no C++ compiler, so no arena.
    """
    if max_plans < 1:
        raise ConfigError(f"max_plans is {max_plans}; at least 1 plan must be kept")
    if not isinstance(layout_s, int | float) or not layout_s >= 0:
        raise ConfigError(f"layout_s is {layout_s!r}; it must be a number of seconds")
    limit_bytes = 0 if limit is None else parse_byte_count(limit)
    if limit is not None and limit_bytes == 0:
        raise ConfigError("a limit of 0 bytes leaves no memory; without a limit it is None")
    return ProfileGuidedArena(limit_bytes, max_plans, layout_s)
