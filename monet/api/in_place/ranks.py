"""The processes that train one model together: the first of them plans, and all get its plan.

Processes that plan for themselves measure other times, and find other plans of the same step: each rank would wait for
the slowest, and their memory would differ. They talk to each other at their first training calls only, until all have
the plan. Whatever is not as planned later is each process's own matter: they need not reach it at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree

from monet.api.in_place.call_geometry import CallGeometry
from monet.api.in_place.first_plan import FirstPlan
from monet.api.in_place.plan_family import PlanFamily
from monet.capture.lifted_graph import LiftedGraph
from monet.errors import ConfigError, MonetError, PlanMismatch
from monet.executor import parallel
from monet.plans.plan import Plan

Processes: TypeAlias = Any
"""A ``torch.distributed.ProcessGroup``, a name that not every build of torch has."""

_PART = (
    "each process plans %s for itself: torch.compile has made a graph without parameters that DistributedDataParallel "
    "reduces (%s), so that other processes may never call it. To have rank 0 plan for all, let all of them call it "
    "first at the same time, and give options={'process_group': torch.distributed.group.WORLD, ...}"
)


class Ranks:
    """``group``: of the processes; None: that of ``DistributedDataParallel``, in a call inside of one that is around
    ``model`` itself, since a part of its model may be called by some of the processes only. A graph of torch.compile is
    all of the model where it has all the parameters that are reduced, or, where some may be unused, has the model's
    under their names. ``family``: the processes agree once in it."""

    def __init__(self, model: torch.nn.Module, family: PlanFamily, group: Processes | None = None) -> None:
        if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
            raise ConfigError(
                "process_group must be a torch.distributed.ProcessGroup, as of torch.distributed.new_group(), "
                f"not {group!r}"
            )
        self._model, self._family, self._given = model, family, group
        self._part_of: Any = None  # what was found to be around more than the model
        self.alone = True  # no other process has to run what this one does

    def to_agree_with(self) -> Processes | None:
        """The group whose processes have yet to agree, and do so in this call; None where there is nothing to do."""
        if self._family.agreed:
            return None
        group = self._given
        if group is None:
            around = parallel.active()
            if around is None or around is self._part_of:
                return None
            if not self._is_all_of(around):
                self._part_of = around
                return None
            group = around.process_group
        if dist.get_rank(group) < 0:
            raise PlanMismatch("this process is not in the process_group that was given for planning")
        if dist.get_world_size(group) == 1:
            self._family.agreed = True
            return None
        self.alone = False
        return group

    def _is_all_of(self, around: Any) -> bool:
        if not isinstance(self._model, LiftedGraph):
            return around.module is self._model
        own = {id(parameter) for parameter in self._model.parameters()}
        if all(id(parameter) in own for parameter in around._module_parameters):
            return True
        whole = getattr(around.module, "_orig_mod", around.module)  # of what torch.compile(model) returns
        if (around.find_unused_parameters or around.static_graph) and self._has_names_of(whole):
            return True
        without = [name for name, p in whole.named_parameters() if p.requires_grad and id(p) not in own]
        self._family.note("part", _PART, ", ".join(without[:3]) + (", …" if len(without) > 3 else ""))
        return False

    def _has_names_of(self, whole: torch.nn.Module) -> bool:
        """Whether the graph is of ``whole``, and not of a part: parameters have the names there that they have here."""
        names = dict(whole.named_parameters(remove_duplicate=False))
        own = dict(self._model.named_parameters())
        return len(own) > 0 and all(names.get(name) is parameter for name, parameter in own.items())

    def agreed(self) -> None:
        """There is nothing left to agree upon."""
        self._family.agreed = True

    @staticmethod
    def is_first(group: Processes) -> bool:
        return dist.get_rank(group) == 0

    @staticmethod
    def from_first(group: Processes, said: FirstPlan | None) -> FirstPlan:
        """What rank 0 says to all: in rank 0, ``said``."""
        box = [said]
        dist.broadcast_object_list(box, group=group, group_src=0)
        assert box[0] is not None
        return box[0]

    @staticmethod
    def require_equal(group: Processes, plans: Sequence[Plan]) -> None:
        """Raises ``PlanMismatch`` in every process where the plans that they begin with differ."""
        others = parallel.with_other_plans(group, plans)
        if others:
            raise PlanMismatch(
                f"{parallel.named(others)} would run other plans than rank 0: make one plan, and give all processes "
                "its file; with a budget, let the first training call be one inside of DistributedDataParallel"
            )

    @staticmethod
    def require_all(group: Processes, refusal: str | None) -> None:
        """``refusal``: why this process cannot run rank 0's plan. Raises ``PlanMismatch`` in every process where any
        cannot, with their reasons."""
        found: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, refusal, group=group)
        refusals = {rank: reason for rank, reason in enumerate(found) if reason is not None}
        if refusals:
            rank, reason = next(iter(refusals.items()))
            raise PlanMismatch(
                f"{parallel.named(list(refusals))} cannot run the plan that rank 0 has made for all (model, libraries, "
                f"processor and threads must be the same everywhere): rank {rank}: {reason}"
            )


def portable(geometry: CallGeometry) -> tuple[Any, ...] | None:
    """A geometry as another process can compare its own with; None where the structure of the inputs has no text."""
    try:
        structure = pytree.treespec_dumps(geometry.structure)
    except NotImplementedError:
        return None
    local = ("forward", "structure")  # the first is an identity in this process
    return (structure, *(getattr(geometry, field.name) for field in fields(geometry) if field.name not in local))


def failure(error: BaseException) -> str:
    """``error`` as others are told of it."""
    return str(error) if isinstance(error, MonetError) else f"{type(error).__name__}: {error}"
