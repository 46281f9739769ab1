"""An operator that stands for several: a program of aten calls, as data, which is called like any operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch

from monet.base.graph import Operator, Ref
from monet.ops.fusion.compiling import Geometry, Kernel, kernel_of


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument that is a value of the program: its inputs come first, then one for each call."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an aten operator with one result, or of ``getitem`` for one of several."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        named = "".join(f", {key}={value}" for key, value in self.kwargs)
        target = "getitem" if self.target is getitem else self.target
        return f"{target}({', '.join(map(str, self.args))}{named})"


@dataclass(frozen=True, slots=True)
class Labels:
    """An input that is labels of rows: each is below ``classes``, or is ``ignored``. A compiled kernel that meets
    another one ends the process, so they are looked at before; on a GPU it is as in eager."""

    input: int
    classes: int
    ignored: int

    def require(self, labels: torch.Tensor) -> None:
        """Raises ``IndexError`` as aten's loss does."""
        if labels.device.type != "cpu":
            return
        wrong = ((labels < 0) | (labels >= self.classes)) & (labels != self.ignored)
        if wrong.any():
            raise IndexError(f"Target {int(labels[wrong][0])} is out of bounds.")


@dataclass(frozen=True, slots=True)
class Fused:
    """A program: ``steps`` on ``inputs`` tensors, of whose values ``outputs`` are the results.

    Called with the inputs it returns the results, one tensor alone where there is one, each in memory of its own.
    ``labels``: where an input is some. ``kernels``: by geometry of the inputs, those that were called.
    """

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    labels: Labels | None = None
    kernels: dict[tuple[Geometry, ...], Kernel] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> Any:
        return Fused, (self.inputs, self.steps, self.outputs, self.labels)

    def __str__(self) -> str:
        names = "_".join(str(step.target).split(".")[1] for step in self.steps if step.target is not getitem)
        steps = "; ".join(map(str, self.steps))
        return f"fused.{names}.({self.inputs} inputs: {steps} -> {list(self.outputs)})"

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        geometry = tuple((t.dtype, t.shape, t.stride(), t.device) for t in inputs)
        kernel = self.kernels.get(geometry)
        if kernel is None:
            kernel = self.kernels[geometry] = kernel_of(self, geometry)
        if self.labels is not None:
            self.labels.require(inputs[self.labels.input])
        results = kernel(list(inputs))
        return results[0] if len(self.outputs) == 1 else tuple(results)

    def run(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """The results, by the aten calls one after another."""
        values: list[Any] = list(inputs)
        for step in self.steps:
            values.append(step.target(*_filled(step.args, values), **{k: _filled(v, values) for k, v in step.kwargs}))
        return [values[index] for index in self.outputs]


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    """The argument tree with values for slots."""
    if isinstance(argument, Slot):
        return values[argument.index]
    if isinstance(argument, list | tuple):
        return type(argument)(_filled(item, values) for item in argument)
    return argument


def step_of(op: Operator, slots: Mapping[str, int]) -> Step:
    """The call of an operator, with slots for values."""
    return Step(op.target, _slotted(op.args, slots), tuple((key, _slotted(value, slots)) for key, value in op.kwargs))


def _slotted(argument: Any, slots: Mapping[str, int]) -> Any:
    """The argument tree with slots for values; lists become tuples, so that it can be a key."""
    if isinstance(argument, Ref):
        return Slot(slots[argument.name])
    if isinstance(argument, list | tuple):
        return tuple(_slotted(item, slots) for item in argument)
    return argument
