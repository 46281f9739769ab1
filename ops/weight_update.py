"""Weight updates of ``torch.optim``, one operator a parameter, by the very code that eager's ``step`` runs.

What depends on the parameter group's structure (is there momentum, which kernels) is part of the operator, and so of
the plan. Numbers (learning rate, betas, the decay itself) are read from the group at each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from monet.errors import ConfigError, PlanMismatch

State = dict[str, torch.Tensor]

# Adam's state, in the order in which the update takes it.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def algorithm(optimizer: torch.optim.Optimizer) -> str:
    """``sgd`` or ``adam`` (AdamW is Adam with decoupled decay). Raises ``ConfigError`` for other optimisers."""
    known = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adam"}
    found = known.get(type(optimizer))  # a subclass may have a step of its own
    if found is None:
        raise ConfigError(
            f"optimizer is a {type(optimizer).__name__}; the updates that can be planned are those of torch.optim.SGD, "
            "Adam and AdamW. For another one plan the module alone (monet.plan, MonetModule) and step it yourself"
        )
    return found


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """The operator: changes a parameter and its state from its gradient, which it leaves as it is.

    ``structure``: what of the parameter group decides which kernels run.
    """

    algorithm: str
    structure: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"optim.{self.algorithm}.{','.join(f'{k}={v}' for k, v in self.structure)}"

    __repr__ = __str__

    def __call__(self, live: LiveUpdate, parameter: torch.Tensor, gradient: torch.Tensor, *state: torch.Tensor) -> None:
        group = live.group
        if gradient.stride() != parameter.stride() or self._writes_gradient():
            # Autograd gives a leaf a gradient of the leaf's own strides.
            own = torch.empty_strided(parameter.shape, parameter.stride(), dtype=gradient.dtype, device=gradient.device)
            gradient = own.copy_(gradient)
        if self.algorithm == "sgd":
            self._sgd(group, live.first, parameter, gradient, state)
        else:
            self._adam(group, parameter, gradient, state)

    def _writes_gradient(self) -> bool:
        structure = dict(self.structure)
        return self.algorithm == "sgd" and bool(structure["nesterov"] and structure["foreach"] is not False)

    @staticmethod
    def _sgd(
        group: Mapping[str, Any],
        first: bool,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: tuple[torch.Tensor, ...],
    ) -> None:
        """A first step copies the gradient into the momentum buffer: that is zeros with no dampening."""
        sgd(
            [parameter], [gradient], list(state) or [None], has_sparse_grad=False,
            foreach=group["foreach"], fused=group["fused"], weight_decay=group["weight_decay"],
            momentum=group["momentum"], lr=group["lr"], dampening=0.0 if first else group["dampening"],
            nesterov=group["nesterov"], maximize=group["maximize"],
        )  # fmt: skip

    @staticmethod
    def _adam(
        group: Mapping[str, Any],
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: tuple[torch.Tensor, ...],
    ) -> None:
        beta1, beta2 = group["betas"]
        step, average, square, *greatest = state
        adam(
            [parameter], [gradient], [average], [square], list(greatest), [step],
            foreach=group["foreach"], capturable=group["capturable"], differentiable=group["differentiable"],
            fused=group["fused"], has_complex=torch.is_complex(parameter),
            decoupled_weight_decay=group["decoupled_weight_decay"], amsgrad=group["amsgrad"], beta1=beta1, beta2=beta2,
            lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
        )  # fmt: skip


def parameter_update(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> ParameterUpdate:
    """The operator of this group's parameters. Raises ``ConfigError`` where it would have to be differentiated."""
    if group["differentiable"]:
        raise ConfigError("differentiable=True: a planned step runs its updates without autograd")
    if not isinstance(group["lr"], float | int):
        raise ConfigError("the learning rate is a tensor; a planned step reads it as a number: pass a float")
    kind = algorithm(optimizer)
    flags = ["foreach", "fused", "maximize"]
    flags += ["nesterov"] if kind == "sgd" else ["amsgrad", "capturable", "decoupled_weight_decay"]
    structure = {name: group[name] for name in flags}
    structure["weight_decay"] = group["weight_decay"] != 0
    if kind == "sgd":
        structure["momentum"] = group["momentum"] != 0
    return ParameterUpdate(kind, tuple(sorted(structure.items())))


class LiveUpdate:
    """One parameter's place in an optimiser, as it is at the time of a step.

    ``first``: its momentum has no past, until ``done`` says that a step has been made. ``reached``: the parameter has a
    gradient in this step. Loading a state replaces groups and state, but neither optimiser nor parameter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, index: int, parameter: torch.nn.Parameter) -> None:
        self.optimizer, self.index, self.parameter = optimizer, index, parameter
        self.update = parameter_update(optimizer, self.group)
        self.reached = True
        self._is_made = False  # all of its state, before this step
        self._fresh: torch.Tensor | None = None  # state that was made here and that no step has used

    def __repr__(self) -> str:
        return "group"

    @property
    def group(self) -> Mapping[str, Any]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups[self.index]

    @property
    def first(self) -> bool:
        state = self.optimizer.state.get(self.parameter, {})
        return self._fresh is not None and any(value is self._fresh for value in state.values())

    @property
    def state(self) -> State:
        """The parameter's state tensors by key, as the optimiser has them."""
        found: State = self.optimizer.state[self.parameter]
        return found

    def exchange(self, key: str, tensor: torch.Tensor) -> None:
        """Have another tensor of the same content as this state, or the first one."""
        if self._fresh is not None and self.state.get(key) is self._fresh:
            self._fresh = tensor
        self.state[key] = tensor

    def begin_anew(self) -> None:
        """Its state is there, and no step has used it."""
        self._fresh = next(reversed(self.state.values()), None)

    def done(self, *, keep: bool) -> None:
        """After a step. ``keep``: state that was made for it stays where the parameter had no gradient; else it is
        gone, as eager would not have made it."""
        if self.reached:
            self._fresh = None
        elif self._is_made and not keep:
            self.optimizer.state.pop(self.parameter, None)

    @cached_property
    def empty_state(self) -> State:
        """State tensors of the right geometry, by key, in the order in which the update takes them, on no device.

        They follow from the structure that was planned, so each step need not make them again.
        """
        like = self.parameter.detach().to("meta")
        if self.update.algorithm == "sgd":
            return {"momentum_buffer": torch.zeros_like(like)} if self.group["momentum"] != 0 else {}
        moments = _MOMENTS if self.group["amsgrad"] else _MOMENTS[:2]
        return {"step": torch.empty((), dtype=self._step_dtype(), device="meta")} | {
            key: torch.zeros_like(like) for key in moments
        }

    def state_device(self, key: str) -> torch.device:
        """A step is counted on the host, unless a kernel reads the count."""
        on_host = key == "step" and not (self.group["capturable"] or self.group["fused"])
        return torch.device("cpu") if on_host else self.parameter.device

    def _step_dtype(self) -> torch.dtype:
        wide = torch.get_default_dtype() is torch.float64 and not self.group["fused"]
        return torch.float64 if wide else torch.float32

    def prepare(self) -> None:
        """Make the state that eager's first step would make.

        Raises ``PlanMismatch`` where the group is no longer what was planned.
        """
        self.reached = True
        now = parameter_update(self.optimizer, self.group)
        if now != self.update:
            changed = [f"{k} {v!r} instead of {dict(self.update.structure)[k]!r}" for k, v in now.structure
                       if dict(self.update.structure)[k] != v]  # fmt: skip
            raise PlanMismatch(f"parameter group {self.index} has changed: {', '.join(changed)}; plan again")
        if not self.empty_state:
            return
        state = self.optimizer.state[self.parameter]
        self._is_made = not state
        for key, value in self.empty_state.items():
            if state.get(key) is not None:
                continue
            self._fresh = state[key] = torch.zeros_like(value, device=self.state_device(key))
