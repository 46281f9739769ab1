"""What an optimiser does to one parameter, as aten operators: torch.optim's own code, recorded on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from monet.base.graph import Value
from monet.errors import CaptureError

OptimizerFactory: TypeAlias = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
PARAMETER_STORAGE, GRADIENT_STORAGE = 0, 1


@dataclass(frozen=True, slots=True)
class Call:
    """One operator of an update: the storages that it reads, makes and overwrites.

    Storages are numbered: ``PARAMETER_STORAGE``, ``GRADIENT_STORAGE``, then state and temporaries as they occur.
    """

    operator: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...]
    view: bool


@dataclass(frozen=True)
class Update:
    """The operators of one parameter's update. ``state``: storages that exist before and after it. ``bytes``: of each
    storage, which are the parameter's, the gradient's, the state's and what calls make."""

    calls: tuple[Call, ...]
    state: tuple[int, ...]
    bytes: Mapping[int, int]


def trace_update(optimizer: OptimizerFactory, parameter: Value, gradient: Value) -> Update:
    """The update of one parameter, in a step that is not the first, so that its state exists.

    Counters of steps, which are on the host, are left out. Raises ``CaptureError`` where the optimiser cannot be run
    without contents, or takes many parameters at a time.
    """
    weight = torch.nn.Parameter(_empty(parameter))
    weight.grad = _empty(gradient)
    try:
        stepper = optimizer([weight])
        stepper.step()  # makes the state
        recorder = _Recorder(weight, weight.grad)
        with recorder:
            stepper.step()
    except CaptureError:
        raise
    except Exception as error:  # whatever the optimiser does without contents
        raise CaptureError(f"the optimiser's update cannot be traced: {type(error).__name__}: {error}") from error
    return recorder.update()


def _empty(value: Value) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")


class _Recorder(TorchDispatchMode):
    """Notes every operator that touches a tensor on the meta device."""

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Call] = []
        self._numbers: dict[int, int] = {}
        self._bytes: dict[int, int] = {}
        self._made: set[int] = {PARAMETER_STORAGE, GRADIENT_STORAGE}
        self._alive: list[torch.Tensor] = []  # a freed storage's address would be given to another
        self._storages([parameter, gradient])

    def update(self) -> Update:
        return Update(tuple(self._calls), tuple(n for n in self._bytes if n not in self._made), self._bytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if "_foreach_" in str(func):
            raise CaptureError(f"the optimiser calls {func} on many parameters at a time; give it foreach=False")
        reads = self._storages((args, kwargs))
        known = set(self._numbers.values())
        results = self._storages(result)
        if reads or results:
            written = self._storages([value for argument, value in _bound(func, args, kwargs) if _is_write(argument)])
            makes = tuple(n for n in results if n not in known)
            self._made.update(makes)
            view = bool(results) and not makes and not written
            reads = tuple(n for n in reads if n not in written)
            self._calls.append(Call(func.__name__.partition(".")[0], reads, makes, written, view))
        return result

    def _storages(self, tree: Any) -> tuple[int, ...]:
        """Numbers of the storages of the tree's tensors on the meta device, without repetition; new storages get the
        next numbers."""
        numbers = []
        for tensor in pytree.tree_leaves(tree):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                storage = tensor.untyped_storage()
                number = self._numbers.setdefault(storage._cdata, len(self._numbers))
                self._bytes[number] = storage.nbytes()
                self._alive.append(tensor)
                numbers.append(number)
        return tuple(dict.fromkeys(numbers))


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The operator's schema arguments, each with its value in this call."""
    by_position = list(zip(func._schema.arguments, args, strict=False))
    return by_position + [(a, kwargs[a.name]) for a in func._schema.arguments[len(args) :] if a.name in kwargs]


def _is_write(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
