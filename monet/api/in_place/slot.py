"""A model whose training calls run by plans, in place: what stands in the slot that ``nn.Module.compile`` fills.

The model stays what it is: its class, its signature, its state and its hooks are looked at by trainers. Copies and
pickles leave the slot out, as they do for a compiled model, and are the plain model.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from monet.api.in_place.applied_text import in_a_line, in_lines
from monet.api.in_place.call_geometry import planned_geometry
from monet.api.in_place.plan_family import REPLACED, PlanFamily
from monet.api.in_place.plan_source import Planned, PlanSource
from monet.api.in_place.ranks import Processes
from monet.api.in_place.training_calls import TrainingCalls
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.guards.module_hooks import part_hooks, said_of
from monet.errors import ConfigError
from monet.executor.module import MonetModule, planned_modes, require_unplanned
from monet.plans.plan import Plan

logger = logging.getLogger(__name__)

_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip

_INSTEAD = (
    'for a plan of what is compiled, model.compile(backend="monet", options={"budget": …}) instead of monet.apply'
)
_COMPILED = f"%s.compile() took the place of what monet.apply had put there: the model runs without a plan; {_INSTEAD}"
_WRAPPED = f"torch.compile compiles this %s itself, not the plan that monet.apply has made for it; {_INSTEAD}"


class Applied:
    """Stands in a model's slot and is called in its place. Hooks of the model are called as ever; in training mode with
    gradients enabled its ``forward`` is run by a plan, else the model itself is called. ``print(monet.applied(model))``
    tells what was planned so far, and why calls ran without a plan."""

    def __init__(
        self,
        model: torch.nn.Module,
        source: PlanSource,
        family: PlanFamily,
        processes: Processes | None = None,
        tune_steps: int = 0,
    ) -> None:
        """``processes``: that run one plan, as in ``Ranks``. ``tune_steps``: as in ``TrainingCalls``."""
        self.model = model
        self.calls = TrainingCalls(model, source, family, lambda: apart(model), processes, tune_steps)
        self._budget = source.budget
        self._hooked = threading.RLock()
        self._told = False

    def add(self, plan: Plan) -> None:
        """Run calls as ``plan`` has them by it. Raises ``PlanMismatch`` where it was made for another model."""
        with planned_modes(self.model, plan):
            guard = ModelGuard(self.model, own_hooks=False)
        with apart(self.model):
            module = MonetModule(self.model, plan, guard=guard)
        self.calls.add(planned_geometry(self.model, plan), Planned(module))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that were made or given so far."""
        return tuple(planned.module.plan for planned in self.calls.modules)

    @property
    def peak_bytes(self) -> int:
        """The peak that the plans so far promise together: over one arena of the largest size, and with
        ``concurrent``, where that many steps have been under way, the sum of what they take."""
        return self.calls.family.peak_bytes

    @property
    def planned_calls(self) -> int:
        """Training calls so far that ran by a plan."""
        return self.calls.planned_calls

    @property
    def eager_calls(self) -> int:
        """Training calls so far that were not as planned and ran without a plan."""
        return self.calls.eager_calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self.model
        if not model.training or not torch.is_grad_enabled() or is_watched():
            return model._call_impl(*args, **kwargs)
        if not (any(model.__dict__[name] for name in _HOOKS) or torch.nn.modules.module._has_any_global_hook()):
            return self._forward(*args, **kwargs)
        return self._with_hooks(args, kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._told:
            self._told = True
            self._tell_what_is_replaced()
        return self.calls.call(self.model.forward, args, kwargs)

    def _tell_what_is_replaced(self) -> None:
        below = [module for module in self.model.modules() if module is not self.model]
        if any(getattr(module, "gradient_checkpointing", False) is True for module in below):
            self.calls.family.note("checkpoints", REPLACED)
        hooked = said_of([hook for hook in part_hooks(self.model) if hook.label != "the model"])
        if hooked:
            logger.warning(
                "%s: no hook of a part is called while a plan runs; what they change of values is in the plan: %s",
                type(self.model).__name__,
                hooked,
            )

    def _with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``nn.Module`` calls hooks around ``self.forward``, which stands for the plan just until it is called."""
        own = self.model.__dict__
        with self._hooked:
            before = own.get("forward")

            def restore() -> None:
                if before is None:
                    own.pop("forward", None)
                else:
                    own["forward"] = before

            def forward(*args: Any, **kwargs: Any) -> Any:
                restore()
                return self._forward(*args, **kwargs)

            own["forward"] = forward
            try:
                return self.model._call_impl(*args, **kwargs)
            finally:
                if own.get("forward") is forward:
                    restore()

    def __del__(self) -> None:
        other = vars(self.model).get("_compiled_call_impl")
        if other is not None and not isinstance(other, Applied):  # put there by model.compile()
            logger.warning(_COMPILED, type(self.model).__name__)

    def __repr__(self) -> str:
        return in_a_line(self.calls)

    def __str__(self) -> str:
        return in_lines(self.calls, self._budget)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Nothing: a copy of the model is a plain one, where its class copies all that it holds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> None:
    """What a pickle has in the slot."""


def put(applied: Applied) -> None:
    """Put it into its model's slot."""
    _tell_of_torch_compile()
    applied.model._compiled_call_impl = applied


@cache
def _tell_of_torch_compile() -> None:
    """From now on say so where ``torch.compile`` is given an applied model: Dynamo calls ``forward`` itself, whatever
    is in the slot, and asks nobody."""
    optimized = torch._dynamo.OptimizedModule
    make = optimized.__init__

    def __init__(self: Any, mod: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if isinstance(vars(mod).get("_compiled_call_impl"), Applied):
            logger.warning(_WRAPPED, type(mod).__name__)
        make(self, mod, *args, **kwargs)

    optimized.__init__ = __init__  # type: ignore[method-assign]


def applied(model: torch.nn.Module) -> Applied:
    """What was put into ``model``. Raises ``ConfigError`` where there is nothing."""
    found = model._compiled_call_impl
    if found is not None and not isinstance(found, Applied):
        raise ConfigError(_COMPILED % type(model).__name__)
    if not isinstance(found, Applied):
        raise ConfigError(f"monet.apply was not called on this {type(model).__name__}")
    return found


def remove(model: torch.nn.Module) -> None:
    """Undo ``monet.apply``: ``model`` is the plain one again. A step that is under way can still be finished.

    Raises ``ConfigError`` where nothing was applied.
    """
    applied(model)
    model._compiled_call_impl = None


def require_plain(model: torch.nn.Module) -> None:
    """Raises ``ConfigError`` for a module that stands around another one: the inner one is planned; and for one that is
    called in another way than by what is in the slot."""
    require_unplanned(model)
    inner = "_orig_mod" if isinstance(model, torch._dynamo.OptimizedModule) else None
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    inner = "module" if isinstance(model, parallel) else inner
    if (type(model).__module__, type(model).__name__) == ("lightning.fabric.wrappers", "_FabricModule"):
        inner = "module"
    if inner is not None:
        raise ConfigError(f"{type(model).__name__} stands around the model; call monet.apply on its .{inner}")
    if model._compiled_call_impl is not None and not isinstance(model._compiled_call_impl, Applied):
        raise ConfigError("the model was compiled by model.compile(), whose place a plan would take")
    # That of a graph module writes the line of an error, and calls the one of all modules.
    if type(model).__call__ is not torch.nn.Module.__call__ and not isinstance(model, torch.fx.GraphModule):
        raise ConfigError(
            f"{type(model).__name__} has a __call__ of its own: it would be in the plan, and run around each planned "
            "call, too. Move what it does to forward, or use a MonetModule, whose plan has it once"
        )


@contextmanager
def apart(model: torch.nn.Module) -> Iterator[None]:
    """A context in which ``model`` is called without its slot and its own hooks, which stay outside of a plan, and has
    parameters where ``torch.func.functional_call`` has put tensors."""
    everywhere: list[dict[str, Any]] = [module._parameters for module in model.modules()]
    given = [
        (parameters, name, tensor)
        for parameters in everywhere
        for name, tensor in parameters.items()
        if tensor is not None and not isinstance(tensor, torch.nn.Parameter)
    ]
    slot, hooks = model.__dict__.get("_compiled_call_impl"), {name: model.__dict__[name] for name in _HOOKS}
    is_full = model._is_full_backward_hook
    model._compiled_call_impl = None
    model.__dict__.update({name: OrderedDict() for name in _HOOKS})
    model._is_full_backward_hook = None
    for parameters, name, tensor in given:
        parameters[name] = torch.nn.Parameter(tensor.detach(), tensor.requires_grad)
    try:
        yield
    finally:
        for parameters, name, tensor in given:
            parameters[name] = tensor
        model.__dict__.update(hooks)
        model._is_full_backward_hook = is_full
        model._compiled_call_impl = slot


def is_watched() -> bool:
    """Whether somebody looks at the operators themselves, and not at their results: a tracer, a transform of
    ``torch.func``, a mode that counts or fakes them, a checkpoint or another who packs what backward needs."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch.autograd.forward_ad._current_level >= 0
    )
