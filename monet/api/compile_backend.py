"""``torch.compile(model, backend="monet", options={"budget": "6GB"})``: an entry point of ``torch_dynamo_backends``.

Dynamo hands over a graph; at its first real call it becomes a module (``monet.capture.lifted_graph``), which is
planned and run as ``monet.apply`` plans and runs a model.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import CellType, FrameType, ModuleType
from typing import Any

import torch
from torch._dynamo.output_graph import OutputGraph
from torch.utils.weak import WeakTensorKeyDictionary

from monet.api.functions import PLAN_OPTIONS, plan, require_known
from monet.api.in_place.plan_family import MOST_PLANS, REPLACED, PlanFamily
from monet.api.in_place.plan_source import FOUND_OUT, PlanSource
from monet.api.in_place.slot import is_watched
from monet.api.in_place.training_calls import TrainingCalls
from monet.capture.guards.code_names import names_of
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.lifted_graph import LiftedGraph
from monet.errors import CaptureError, ConfigError, PlanMismatch
from monet.executor import parallel

logger = logging.getLogger(__name__)

_OWN = ("budget", "on_mismatch", "max_plans", "concurrent", "process_group", "on_break")
_DYNAMIC = (
    "%s has a graph for several numbers now, and its plans are each for one: those that came before are planned once "
    "more. Compile it with dynamic=False, which keeps a graph a number"
)
_UNNAMED = "step_unsupported"  # of a break below the last place where Dynamo can go on
_RESUMED = "torch_dynamo_resume_in_"
# Of the dictionary of options torch.compile gives each model's graphs the same. Families are kept by a parameter, too.
_cuts_told: list[Any] = []
_families: Any = WeakTensorKeyDictionary()


def monet(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """A function that runs ``graph`` by plans, one a geometry of its inputs, each made at its first training call.

    ``options``: ``budget``, and what ``monet.apply`` takes but ``rungs`` and ``tune_steps``, with
    ``on_mismatch="replan"`` unless it is given.
    ``on_break``: what is done where Dynamo cuts the model into several graphs, of which none can keep the budget of
    all: ``"error"``, or ``"eager"``, which runs them without a plan. In ``DistributedDataParallel``, rank 0 plans at
    the first training call of a graph that has all of its parameters, and all processes run that plan.
    Raises ``CaptureError`` for a cut, ``ConfigError`` and ``TypeError`` for options that there are not.
    """
    given = dict(options or {})
    require_known('torch.compile(backend="monet")', given, [*PLAN_OPTIONS, *_OWN])
    if mode is not None or "budget" not in given:
        raise ConfigError('backend="monet" needs options={"budget": "6GB"} or the like, and takes no mode')
    if given.get("on_break", "error") not in ("error", "eager"):
        raise ConfigError(f"on_break must be 'error' or 'eager', not {given['on_break']!r}")
    place = _cut(graph)
    if place is not None:
        if given.get("on_break", "error") == "error":
            raise CaptureError(
                f"torch.compile cuts the model into several graphs, which no plan can cover: {place}. Change that "
                "place, or run without a plan by options={'on_break': 'eager', ...}"
            )
        if not any(told is options for told in _cuts_told):
            _cuts_told.append(options)
            logger.warning("torch.compile cuts the model, and its parts run without a plan: %s (told once)", place)
        return graph.forward
    if parallel.active() is not None and torch._dynamo.config.optimize_ddp:
        raise CaptureError(
            "torch.compile cuts a model in DistributedDataParallel at its buckets: set "
            "torch._dynamo.config.optimize_ddp = False"
        )
    planned = _PlannedGraph(graph, given, _family(example_inputs, options, given), _compiled_modules())
    return torch._dynamo.disable(planned)  # type: ignore[no-any-return]


def _compiled_modules() -> list[torch.nn.Module]:
    """The modules whose calls Dynamo traces, while it calls its backend: that are arguments and variables of what it
    compiles, attributes of these, and globals."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        traced = frame.f_locals.get("self")
        if isinstance(traced, OutputGraph):
            root = traced.root_tx
            named = {name for name, _ in names_of(root.f_code).globals}
            values = [*root.f_locals.values(), *(root.f_globals.get(name) for name in named)]
            values += [part for value in values if isinstance(value, list | tuple) for part in value]
            objects = [value for value in values if not isinstance(value, torch.nn.Module | type | ModuleType)]
            values += [part for value in objects for part in getattr(value, "__dict__", {}).values()]
            values += [getattr(cell, "cell_contents", None) for cell in values if isinstance(cell, CellType)]
            found = {id(value): value for value in values if isinstance(value, torch.nn.Module)}
            return list(found.values())
        frame = frame.f_back
    return []


class _PlannedGraph:
    """Called with the arguments of a graph."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        options: Mapping[str, Any],
        family: PlanFamily,
        modules: Sequence[torch.nn.Module],
    ) -> None:
        """``modules``: whose graph it is. Dynamo guards their attributes, and neither hooks nor methods of classes."""
        self._guards = [ModelGuard(module, own_hooks=False, code_alone=True) for module in modules]
        self._parameters = {id(parameter) for module in modules for parameter in module.parameters()}
        made = {name: value for name, value in options.items() if name not in _OWN}
        if family.rule != "error":
            made["dynamic"] = FOUND_OUT
        self._graph, self._family = graph, family
        self._processes = options.get("process_group")
        self._source = PlanSource(plan, options["budget"], made)
        self._lifted: LiftedGraph | None = None
        self._calls: TrainingCalls | None = None
        self._numbers: list[float] | None = None  # of the first call

    def __call__(self, *args: Any) -> Any:
        difference = next(filter(None, (guard.difference() for guard in self._guards)), None)
        if difference is not None and self._is_of_these(args):
            raise PlanMismatch(
                f"{difference.sentence}; torch.compile runs what it compiled before, so undo that, or call "
                "torch._dynamo.reset() to compile the model as it is"
            )
        if not torch.is_grad_enabled() or is_watched():
            return self._graph.forward(*args)
        if self._lifted is None or self._calls is None:
            self._lifted = LiftedGraph(self._graph, args)
            self._calls = TrainingCalls(self._lifted, self._source, self._family, nullcontext, self._processes)
            if self._lifted.has_checkpoints:
                self._family.note("checkpoints", REPLACED)
        inputs = self._lifted.inputs(args)
        numbers = [value for value in inputs if isinstance(value, int | float)]
        self._numbers = numbers if self._numbers is None else self._numbers
        if numbers != self._numbers:
            self._family.note("dynamic", _DYNAMIC)
        return self._calls.call(lambda *_: self._graph.forward(*args), inputs, {})

    def _is_of_these(self, args: Sequence[Any]) -> bool:
        """Whether it is called for the modules that it was traced from: Dynamo runs it for others of their class, too,
        where these have no hook of the like."""
        return any(id(value) in self._parameters for value in args)


def _family(example_inputs: Sequence[Any], options: Mapping[str, Any] | None, given: Mapping[str, Any]) -> PlanFamily:
    """Of all graphs that Dynamo makes of one model: they share a budget and an arena."""
    family = PlanFamily(
        "the compiled model",
        given.get("on_mismatch", "replan"),
        given.get("max_plans", MOST_PLANS),
        given.get("concurrent", 1),
    )
    parameter = next((value for value in example_inputs if isinstance(value, torch.nn.Parameter)), None)
    if parameter is None:
        return family
    families: list[tuple[Any, PlanFamily]] = _families.setdefault(parameter, [])
    for of, found in families:
        if of is options:
            return found
    families.append((options, family))
    return family


def _cut(graph: torch.fx.GraphModule) -> str | None:
    """Where and why Dynamo has cut what ``graph`` is a part of; None where it is the whole."""
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None:
        return None
    frames = list(reason.user_stack)
    resumed = any(frame.name.startswith(_RESUMED) for frame in frames)
    if not reason.graph_break and not resumed:
        return None
    where = f' File "{frames[-1].filename}", line {frames[-1].lineno}: {frames[-1].line}' if frames else ""
    why = "after a cut" if resumed and not reason.graph_break else " ".join(reason.reason.split())
    if why == _UNNAMED:
        why = "what this line calls cannot be traced (TORCH_LOGS=graph_breaks says why, down to the last call):"
    return f"{why}{where}"
