"""What a trainer has from one step to the next: where a second memory holds parameters and state, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from monet.base.graph import PARAMETER, STATE
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.executor.copying.carried_state import CarriedState
from monet.executor.copying.checkpoint import Checkpoint, Finished, Group
from monet.executor.copying.disk_copies import DiskCopies
from monet.executor.planned_step import PlannedStep, owner_of
from monet.ops.weight_update import LiveUpdate


class HeldState:
    """``steps``: how many were made."""

    def __init__(
        self,
        module: torch.nn.Module,
        step: PlannedStep,
        updates: Mapping[str, LiveUpdate],
        optimizer: torch.optim.Optimizer,
        checkpoint: Checkpoint | None,
    ) -> None:
        """``module``: the model with its loss. Raises ``PlanMismatch`` where the plan moves what model and optimiser do
        not have, and ``ConfigError`` where the checkpoint is another plan's."""
        self._module, self._updates, self._optimizer = module, updates, optimizer
        self.steps = 0
        self._settled = True  # False while a step is under way, where there is a checkpoint
        copies = step.runner.copies
        movable = [source.value for source in step.graph.sources if source.kind in (PARAMETER, STATE)]
        carried = [] if copies is None else list(copies.carried.values())
        if len(set(carried)) < len(carried) or not set(carried) <= set(movable):
            raise PlanMismatch(
                "the plan keeps what is no parameter of this model and no state of this optimizer in the second "
                "memory; plan again"
            )
        self._copies = copies if isinstance(copies, DiskCopies) and copies.carried else None
        self._carried = None if self._copies is None else CarriedState(self._copies, step.graph.values.__getitem__)
        self._moved: list[tuple[str, torch.nn.Module, str]] = []  # storage of a parameter, and whose it is
        self._states: dict[str, dict[str, str]] = {name: {} for name in updates}  # parameter → key → storage
        for source in step.graph.sources:
            if self._carried is None or source.value not in self._carried.tensors:
                continue
            if source.kind == PARAMETER:
                self._moved.append((source.value, *owner_of(module, source.target)))
            elif source.kind == STATE:
                name, _, key = source.target.rpartition(".")
                self._states[name][key] = source.value
        self._checkpoint, carried_places = checkpoint, {} if self._copies is None else self._copies.carried
        self._described = {
            "model": step.plan.model.get("fingerprint"),
            "places": {storage: place for place, storage in carried_places.items()},
            "bytes": step.plan.second_bytes,
        }
        if checkpoint is not None and self._copies is None:
            checkpoint.check_bytes(0)

    @torch.no_grad()
    def load(self, weights: Callable[[str], torch.Tensor]) -> None:
        """One tensor at a time; what is moved goes to its place, and its own memory is not touched. Raises
        ``ConfigError`` where there is none of the right shape."""
        model = self._module.model
        assert isinstance(model, torch.nn.Module)
        moved = {id(owner._parameters[key]): storage for storage, owner, key in self._moved}
        saved = set(model.state_dict(keep_vars=True))  # other buffers are made by the model
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name not in saved:
                continue
            try:
                values = weights(name)
            except KeyError as error:
                raise ConfigError(f"weights has nothing for {name!r}, a tensor {tuple(tensor.shape)}") from error
            if not isinstance(values, torch.Tensor) or values.shape != tensor.shape:
                found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
                raise ConfigError(f"weights({name!r}) is {found}; the model's tensor is {tuple(tensor.shape)}")
            if values.is_meta or values.layout != torch.strided:
                raise ConfigError(
                    f"weights({name!r}) has no values of a plain tensor: it is sparse, or on the meta device"
                )
            if values.is_complex() and not tensor.is_complex():
                raise ConfigError(f"weights({name!r}) has complex values; the model's tensor is real")
            storage = moved.get(id(tensor))
            if storage is None or self._carried is None:
                tensor.copy_(values)
            else:
                self._carried.take(storage, values)
                self._carried.adopt(storage, tensor)
        if self._carried is not None:
            self._carried.release_pages()

    def resume(self) -> bool:
        """Go on from the checkpoint; False where there is none. Raises ``ConfigError``."""
        last = None if self._checkpoint is None else self._checkpoint.last(self._described)
        if last is None:
            return False
        self._put(last)
        return True

    def moves(self, name: str) -> bool:
        """Whether state of this parameter is in a file between steps."""
        return bool(self._states.get(name))

    def recover(self) -> None:
        """Before anything is looked at: what was cut short between two steps is undone."""
        if not self._settled:
            self._restore()

    @torch.no_grad()
    def begin(self, name: str) -> None:
        """State of a parameter that was just made, and is moved, goes to its place at once: that of all parameters
        together may be more than the memory."""
        live = self._updates[name]
        if self._carried is None or not live.first:
            return
        for key, storage in self._states[name].items():
            if not self._carried.has(storage, live.state[key]):
                self._carried.take(storage, live.state[key])
                live.exchange(key, self._carried.tensors[storage])

    @torch.no_grad()
    def ready(self) -> None:
        """Before a step, once the optimiser has its state: parameters and state that are moved are the file's. Raises
        ``ExecutionError`` where one was lost."""
        if self._carried is None:
            return
        carried = self._carried
        states = [(storage, name, key) for name, keys in self._states.items() for key, storage in keys.items()]
        held = [(storage, self._updates[name].state[key]) for storage, name, key in states]
        held += [(storage, parameter.detach()) for storage, parameter in self._moved_parameters()]
        strange: dict[str, torch.Tensor] = {}  # by storage, what has its memory elsewhere
        for storage, tensor in held:
            if carried.has(storage, tensor):
                carried.check_lost(storage)
            else:
                strange[storage] = tensor
        fitting = {storage: tensor for storage, tensor in strange.items() if carried.fits(storage, tensor)}
        # Of those in each other's places, all are read before one is written.
        fitting = {s: t.clone() if carried.is_inside(t) else t for s, t in fitting.items()}
        for storage, tensor in fitting.items():
            carried.take(storage, tensor)
        for storage, parameter in self._moved_parameters():
            if storage in fitting:
                carried.adopt(storage, parameter)
        for storage, name, key in states:
            if storage in fitting:
                self._updates[name].exchange(key, carried.tensors[storage])
        carried.release_pages()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step. One that ends by an error has changed nothing, where there is a checkpoint: what there was
        before it is written first, with all that was done between steps."""
        if self._checkpoint is None:
            try:
                yield
            except BaseException:
                if self._carried is not None:
                    self._carried.empty_lost()
                raise
            self.steps += 1
            return
        self._finish(self.steps, self._half)
        self._settled = False
        half = 1 - self._half if self._copies is not None else 0
        try:
            yield
            self._finish(self.steps + 1, half)
        except BaseException:
            self._restore()
            raise
        self.steps += 1
        self._adopt(half)
        self._settled = True

    def _restore(self) -> None:
        """Model and optimiser are what the checkpoint has."""
        last = None if self._checkpoint is None else self._checkpoint.last(self._described)
        if last is None:
            raise ExecutionError("the checkpoint of this training is gone, and a step was cut short: begin anew")
        self._put(last)
        self._settled = True

    @property
    def _half(self) -> int:
        return 0 if self._copies is None else self._copies.half

    def _moved_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for storage, owner, key in self._moved:
            parameter = owner._parameters[key]
            assert parameter is not None
            yield storage, parameter

    def _finish(self, steps: int, half: int) -> None:
        """All that a step left is on the disk, and is what a later process goes on from."""
        assert self._checkpoint is not None
        if self._copies is not None:
            self._copies.channel.sync()
        groups = [
            Group(names, {k: v for k, given in group.items() if k != "params" and _is_plain(v := _plain(given))})
            for names, group in zip(self._names(), self._optimizer.param_groups, strict=True)
        ]
        fresh = [name for name, live in self._updates.items() if live.first]
        tensors = {name: tensor.detach() for name, tensor in self._others()}
        state, random = self._other_state(), torch.get_rng_state()
        finished = Finished(self._described, steps, half, tensors, state, groups, fresh, random)
        try:
            self._checkpoint.finish(finished)
        except OSError as error:
            raise ExecutionError(f"the checkpoint {self._checkpoint.path} cannot be written: {error}") from error

    def _names(self) -> list[list[str]]:
        """Of each group's parameters."""
        named = {id(parameter): name for name, parameter in self._module.named_parameters()}
        return [[named.get(id(p), "") for p in group["params"]] for group in self._optimizer.param_groups]

    def _others(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is not moved of model and loss, by name."""
        moved = {id(parameter) for _, parameter in self._moved_parameters()}
        for name, tensor in (*self._module.named_parameters(), *self._module.named_buffers()):
            if id(tensor) not in moved:
                yield name, tensor

    def _other_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """What is not moved of the optimiser, by parameter and key."""
        return {
            name: {
                key: tensor
                for key, tensor in self._optimizer.state.get(live.parameter, {}).items()
                if key not in self._states[name] and isinstance(tensor, torch.Tensor)
            }
            for name, live in self._updates.items()
        }

    @torch.no_grad()
    def _put(self, last: Finished) -> None:
        """Model and optimiser are what the checkpoint has."""
        if [group.names for group in last.groups] != self._names():
            raise ConfigError("the checkpoint's optimizer has other groups of parameters; make it as it was")
        others = dict(self._others())
        self.steps = last.steps
        for name, tensor in last.tensors.items():
            others[name].copy_(tensor)
        for name, keys in last.state.items():
            state = self._optimizer.state[self._updates[name].parameter] if keys else {}
            for key, tensor in keys.items():
                if isinstance(state.get(key), torch.Tensor):
                    state[key].copy_(tensor)
                else:
                    state[key] = tensor.clone()  # the checkpoint's own lies in its file
        for group, saved in zip(self._optimizer.param_groups, last.groups, strict=True):
            group.update(saved.settings)
        torch.set_rng_state(last.random)
        self._adopt(last.half)
        for name in last.fresh:
            self._updates[name].begin_anew()

    def _adopt(self, half: int) -> None:
        """Parameters and state that are moved are what this half of the file holds."""
        if self._carried is None or self._copies is None:
            return
        self._copies.lost.clear()  # that was of the other half
        self._carried.turn(half)
        for storage, parameter in self._moved_parameters():
            self._carried.adopt(storage, parameter)
        for name, live in self._updates.items():
            for key, storage in self._states[name].items():
                live.exchange(key, self._carried.tensors[storage])


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item() if hasattr(value, "item") and not isinstance(value, torch.Tensor) else value


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint may have it: another setting is the caller's to make again."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)
