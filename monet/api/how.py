"""How a step is to be prepared and planned: the options of ``monet.plan`` and ``monet.optimize``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from monet.base.amounts import ByteBudget, refusals_in
from monet.base.sizes import Ranges
from monet.errors import ConfigError
from monet.executor.module import require_unplanned
from monet.ops.measuring.profiling import Profile
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import on_stderr, silent
from monet.pipeline.offloading import check_second_memory, offloaded
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.schedules import STORAGE, VARIANTS
from monet.planner.search import Solving
from monet.plans.format import FREED
from monet.plans.plan import Plan
from monet.step.second_memory.offload import Offload, parse_offload, variant_with


def require_module(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, not a {type(model).__name__}")
    require_unplanned(model)


def _kind_of_device(model: torch.nn.Module) -> str | None:
    """Where a model's parameters are, as far as that says where it runs."""
    kinds = {parameter.device.type for parameter in model.parameters()} & {"cpu", "cuda"}
    return kinds.pop() if len(kinds) == 1 else None


@dataclass(frozen=True, slots=True)
class How:
    """The options of ``plan`` and ``optimize``, but for the budget."""

    variant: str
    exact: bool
    offload: str | None
    reserve_bytes: int
    time_limit_s: float
    gap: float
    window: int | None
    solver: str
    prove: bool
    cache: bool
    progress: bool
    seed: int
    accumulate: bool = False
    gradients: str = FREED
    bucket_bytes: int = 0
    fused: bool = False
    cores: int | None = None
    costs: Profile | None = None

    def module_step(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges | None = None
    ) -> Prepared:
        require_module(model)
        return self.prepared(partial(prepare, model, args, kwargs, ranges=ranges), _kind_of_device(model))

    def prepared(self, prepare: Callable[..., Prepared], device: str | None = None) -> Prepared:
        """The step that ``prepare`` gives, with the second memory that was asked for; ``device``: as far as known."""
        self._solving()  # and what is no variant: refused before anything is measured
        if self.variant not in VARIANTS:
            raise ConfigError(f"there is no variant {self.variant!r}; choose one of {', '.join(VARIANTS)}")
        preparing = Preparing(
            self.reserve_bytes, self.accumulate, self.cache, self.seed, self.gradients, self.costs, self.bucket_bytes
        )
        offering = Offering(self.exact, STORAGE.get(self.variant, frozenset()), fused=self.fused)
        offload, _ = self._moving()  # refused before anything is measured
        check_second_memory(offload, device)
        return offloaded(prepare(preparing, offering, progress=self.progress), offload, cache=self.cache)

    def plan(self, prepared: Prepared, budget: ByteBudget) -> Plan:
        _, variant = self._moving()
        solving = self._solving()
        meter = on_stderr if self.progress else silent
        with refusals_in(budget.unit):
            return plan_prepared(prepared, budget, solving, variant=variant, meter=meter, reuse=True).plan

    def _solving(self) -> Solving:
        return Solving(self.time_limit_s, self.gap, self.window, self.solver, self.prove, self.cores)

    def _moving(self) -> tuple[Offload | None, str]:
        """The second memory, and the variant that uses it. Raises ``ConfigError`` where these do not go together."""
        offload = None if self.offload is None else parse_offload(self.offload)
        return offload, variant_with(offload, self.variant)
