"""What a forward pass assigns to attributes of its modules: results of the step, as its outputs are.

``Observed`` calls a model and puts back what it has changed, so that each trace begins as the one before; what was
assigned becomes outputs and values (``Write``), for whoever runs the step to assign.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.functional_tensor import FunctionalTensor

from monet.capture.effects.filled_containers import apply, outcome, stand_in
from monet.capture.effects.given_containers import GivenContainers
from monet.capture.effects.held_state import HeldState, held_as_before, refusing_iterators
from monet.capture.effects.module_changes import NOTHING, RUN_ONCE, Change, put_back, unchanged_around
from monet.capture.effects.python_random import DRAWS, random_state, same_random_state, set_random_state
from monet.capture.effects.tensor_hooks import TensorHooks
from monet.capture.effects.value_conditions import Conditions
from monet.capture.effects.written_tensors import WrittenTensors
from monet.capture.guards.code_names import is_counting
from monet.capture.guards.code_reads import CodeReads
from monet.capture.guards.contents import PLAIN
from monet.capture.guards.model_reads import OF_EVERY_MODULE, label_of, model_reads
from monet.errors import CaptureError, StatefulForward

KEEP = "Else keep the state in a buffer (register_buffer), or pass it in and return it"
OUTPUT, INPUT, MEMBER, VALUE, ADDED = "output", "input", "member", "value", "added"


@dataclass(frozen=True, slots=True)
class Write:
    """An assignment to attribute ``key`` of the submodule ``module`` (its dotted name, "" for the model).

    ``structure`` and ``leaves``: the assigned value as a pytree. A leaf is ``(OUTPUT, position)`` among the flattened
    outputs, the further ones included, ``(INPUT, position)`` among the flattened inputs, ``(MEMBER, name)`` a
    parameter or buffer, ``(VALUE, value)`` no tensor, or ``(ADDED, amount)`` for a number that is counted up.
    ``in_place``: what is done to the container that the attribute holds, as ``filled_containers.py`` has it, instead of
    replacing it.
    ``of_object``: the name of an attribute of the object that the attribute holds: that is what is assigned.
    ``expected``: if it is not None, nothing is assigned. ``key`` is then the line of a condition, and its one leaf an
    output that has this value where the model takes the path of the trace.
    """

    module: str
    key: str
    structure: pytree.TreeSpec
    leaves: tuple[tuple[str, Any], ...]
    in_place: str = ""
    of_object: str = ""
    expected: bool | None = None

    def held(self, model: torch.nn.Module) -> tuple[dict[str, Any], str]:
        """Where it is assigned: a dictionary of attributes and a key."""
        members = vars(model.get_submodule(self.module))
        return (vars(members[self.key]), self.of_object) if self.of_object else (members, self.key)


class Found:
    """What a call has shown. An object of its own: tracing puts back what a module's attributes hold.

    ``writes``: what was assigned; ``out_spec``: the structure of the model's outputs. ``is_checked``: whether it is
    known that nothing that is assigned is read before; else another call tells. ``before``: the model before the first.
    """

    def __init__(self) -> None:
        self.writes: tuple[Write, ...] = ()
        self.out_spec: pytree.TreeSpec | None = None
        self.is_checked = True
        self.before: _Before | None = None
        self.watched: list[Change] = []
        self.counted: set[tuple[int, str]] = set()
        self.done: dict[int, tuple[str, Any]] = {}  # by container, as ``outcome`` has it


class _Before:
    """What the forward pass of a model may read and change. ``is_traced``: whether a call has ended."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.reads = model_reads(model)
        self.held, self.tensors = HeldState(model, self.reads), WrittenTensors(model, self.reads)
        self.is_traced = False


class Observed(torch.nn.Module):
    """``model`` under the names of its parameters and buffers, which is after each call what it was before.

    ``forward`` returns the model's outputs, and where it has assigned attributes a pair of these and of the tensors
    among what was assigned; see ``found``. Raises ``CaptureError`` for what a planned step could not do again.
    """

    def __init__(self, model: torch.nn.Module, *, detached: bool = False) -> None:
        """``detached``: the assigned tensors are, since nobody can call their backward."""
        super().__init__()
        for members in ("_parameters", "_buffers", "_modules"):  # the same dictionaries: tracing puts its own in them
            self.__dict__[members] = getattr(model, members)
        # Tracing names a constant by the attribute that holds it.
        self.__dict__.update({key: value for key, value in vars(model).items() if _is(value)})
        self.__dict__["_model"] = model
        self.__dict__["_names"] = {module: name for name, module in model.named_modules()}
        self._detached = detached
        self._random = random_state()
        self._conditions: list[tuple[torch.Tensor, bool, str]] = []
        self.found = Found()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        model: torch.nn.Module = self.__dict__["_model"]
        set_random_state(self._random)
        changes: list[Change] = []
        before = self.found.before = self.found.before or _Before(model)
        self.found.done.clear()
        self._conditions.clear()
        given = GivenContainers(model, args, kwargs)
        with (
            refusing_iterators(model, before.reads),
            held_as_before(before.held),
            unchanged_around(model, before.reads),
            put_back(model, changes, self.found.done),
            self._refusing_reads(),
            Conditions(self._on_condition),
            TensorHooks(pytree.tree_leaves((args, kwargs))),
        ):
            outputs = model(*args, **kwargs)
        self._require_no_draws()
        given.require_unchanged(outputs)
        self._require_written_anew(before)
        self.found.out_spec = pytree.tree_structure(outputs)
        self.found.writes = ()
        if not changes and not self._conditions:
            return outputs
        return self._with_writes(changes, outputs, pytree.tree_leaves((args, kwargs)))

    @property
    def _reads(self) -> CodeReads:
        assert self.found.before is not None  # made as a call begins
        return self.found.before.reads

    def _on_condition(self, tensor: torch.Tensor, expected: bool, line: str) -> None:
        if self._detached:
            raise CaptureError(
                f"the model decides by values, and a step that updates the weights cannot be taken back: {line}"
            )
        self._conditions.append((tensor, expected, line))

    def _require_no_draws(self) -> None:
        if not same_random_state(random_state(), self._random):
            set_random_state(self._random)
            configs = [vars(module).get("config") for module in self.__dict__["_model"].modules()]
            augments = any(getattr(config, "mask_time_prob", 0) for config in configs)
            raise CaptureError(
                DRAWS.format(whose="")
                + ("; SpecAugment does: set model.config.apply_spec_augment = False" if augments else "")
            )

    def _require_written_anew(self, before: _Before) -> None:
        """Raises ``StatefulForward`` where a plain tensor has other values after each trace: what is written there
        depends on what was there."""
        changed = before.tensors.changed()
        if changed and before.is_traced:
            raise StatefulForward(
                f"the forward pass changes {changed[0]}, a tensor, by what it held: what it computes depends on the "
                f"call before; {RUN_ONCE}. {KEEP}"
            )
        before.is_traced = True
        self.found.is_checked = self.found.is_checked and not changed

    def _with_writes(self, changes: Sequence[Change], outputs: Any, inputs: Sequence[Any]) -> Any:
        model: torch.nn.Module = self.__dict__["_model"]
        flat = pytree.tree_leaves(outputs)
        members = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        known = [(OUTPUT, flat), (INPUT, list(inputs))]
        held = filter(_is, (*flat, *inputs, *model.parameters(), *model.buffers()))
        taken = {inner(tensor).untyped_storage()._cdata for tensor in held}
        extra: list[torch.Tensor] = []

        def leaf(value: Any, change: Change) -> tuple[str, Any]:
            if not isinstance(value, torch.Tensor):
                if not isinstance(value, PLAIN):
                    raise CaptureError(_not_again(self._place(change), f"a {type(value).__name__}"))
                return VALUE, value
            for kind, tensors in known:
                for position, tensor in enumerate(tensors):
                    if tensor is value and not (self._detached and kind == OUTPUT):
                        return kind, position
            if id(value) in members:
                return MEMBER, members[id(value)]
            for position, tensor in enumerate(assigned):
                if tensor is value:
                    return OUTPUT, len(flat) + position
            assigned.append(value)
            own = value.detach() if self._detached else value
            extra.append(own if has_memory_of_its_own(inner(value), taken) else own.clone())
            return OUTPUT, len(flat) + len(extra) - 1

        assigned: list[torch.Tensor] = []
        writes = []
        for change in changes:
            counted = self._counted(change)
            if counted is not None:
                leaves, structure = [counted], pytree.tree_structure(0)
            else:
                self._require_settled(change)
                values, structure = pytree.tree_flatten(change.after, is_leaf=lambda of: isinstance(of, PLAIN))
                leaves = [leaf(value, change) for value in values]
            name = self.__dict__["_names"][change.module]
            writes.append(Write(name, change.key, structure, tuple(leaves), change.in_place, change.of_object))
        for tensor, expected, line in self._conditions:
            # A copy: where the condition is an output itself, torch would rebuild one of the two.
            extra.append(tensor.clone())
            where = (OUTPUT, len(flat) + len(extra) - 1)
            writes.append(Write("", line, pytree.tree_structure(0), (where,), expected=expected))
        self.found.writes = tuple(writes)
        return (outputs, extra) if writes else outputs

    def _place(self, change: Change) -> str:
        name = self.__dict__["_names"][change.module]
        place = label_of(name, change.key)
        return f"{place}.{change.of_object}" if change.of_object else place

    def _counted(self, change: Change) -> tuple[str, Any] | None:
        """Of a number that is counted up."""
        before, after = change.before, change.after
        if not all(type(value) in (int, float) for value in (before, after)) or change.name not in self._reads.counted:
            return None
        if change.of_object:
            self._require_unread(change)
        else:
            self.found.counted.add((id(change.module), change.key))
            if self._reads.is_named(change.key):
                self._watch(change)
        return ADDED, after - before

    def _require_settled(self, change: Change) -> None:
        """Raises ``StatefulForward`` where the next call would begin with another model than this one did, as far as
        the change itself tells."""
        place = self._place(change)
        if change.key in OF_EVERY_MODULE or _holds_modules(change.after) or _holds_modules(change.before):
            raise StatefulForward(
                f"the forward pass changes {place}, so that the next call is another model's; {RUN_ONCE}"
            )
        if change.after is NOTHING:
            raise StatefulForward(f"the forward pass deletes {place}, which a plan would not; {RUN_ONCE}")
        if change.of_object:
            if change.name in self._reads.counted:
                raise self._stateful(change)
            self._require_unread(change)
        elif change.in_place or self._reads.is_named(change.key) or change.key in self._reads.counted:
            self._watch(change)

    def _require_unread(self, change: Change) -> None:
        """Of an attribute of an object: it is not known whether it is read before it is assigned."""
        if self._reads.is_met(change.of_object, change.after) or self._reads.is_met(change.of_object, change.before):
            raise StatefulForward(f"the forward pass changes {self._place(change)} and reads it; {RUN_ONCE}")

    def _watch(self, change: Change) -> None:
        """Let the next trace tell whether what was there before is read."""
        if all((known.module, known.key) != (change.module, change.key) for known in self.found.watched):
            self.found.watched.append(change)
            self.found.is_checked = False

    @contextmanager
    def _refusing_reads(self) -> Iterator[None]:
        """A context that raises ``StatefulForward`` where code reads, before it assigns it, an attribute that the trace
        before this one has assigned, and where it leaves in a container what was there before."""
        watched = [change for change in self.found.watched if not change.in_place]
        filled = [change for change in self.found.watched if change.in_place]
        if not self.found.watched:
            yield
            self.found.is_checked = True
            return
        with self._refusing_attributes(watched), self._refusing_contents(filled):
            yield
        self.found.is_checked = True

    @contextmanager
    def _refusing_attributes(self, changes: Sequence[Change]) -> Iterator[None]:
        """Found absent in the module, an attribute is asked for by its class, and then by ``Module.__getattr__``."""
        watched = {(id(change.module), change.key): change for change in changes}
        counts = {key: change.before for key, change in watched.items() if key in self.found.counted}
        taken = [(vars(of.module), of.key, vars(of.module).pop(of.key, NOTHING)) for of in changes]
        ask, put = torch.nn.Module.__getattr__, torch.nn.Module.__setattr__

        def found(module: Any, name: str, frame: Any) -> Any:
            """Of a watched attribute that has not been assigned yet."""
            key = id(module), name
            if key in counts and is_counting(frame.f_code, frame.f_lasti):
                return counts[key]
            raise self._stateful(watched[key])

        def asked(module: torch.nn.Module, name: str) -> Any:
            if (id(module), name) not in watched:
                return ask(module, name)
            return found(module, name, sys._getframe(1))

        def assigned(module: torch.nn.Module, name: str, value: Any) -> None:
            if (id(module), name) in counts:  # it stays absent, so that a later read is seen, too
                counts[id(module), name] = value
            else:
                put(module, name, value)

        class InClass:
            """Stands for what a class has under a watched name."""

            def __init__(self, name: str, value: Any) -> None:
                self.name, self.value = name, value

            def __get__(self, module: Any, of: Any = None) -> Any:
                if (id(module), self.name) in watched:
                    return found(module, self.name, sys._getframe(1))
                return self.value.__get__(module, of) if hasattr(self.value, "__get__") else self.value

        in_classes = {(base, of.key) for of in changes for base in type(of.module).__mro__ if of.key in vars(base)}
        replaced = [(base, key, vars(base)[key]) for base, key in in_classes]
        try:
            for base, key, value in replaced:
                setattr(base, key, InClass(key, value))
            torch.nn.Module.__getattr__ = asked  # type: ignore[method-assign]
            torch.nn.Module.__setattr__ = assigned  # type: ignore[method-assign, assignment]
            yield
        finally:
            torch.nn.Module.__getattr__ = ask  # type: ignore[method-assign]
            torch.nn.Module.__setattr__ = put  # type: ignore[method-assign]
            for base, key, value in replaced:
                setattr(base, key, value)
            for members, key, value in taken:
                if key not in members and value is not NOTHING:
                    members[key] = value
            for change in changes:
                if (id(change.module), change.key) in counts:
                    vars(change.module)[change.key] = counts[id(change.module), change.key]

    @contextmanager
    def _refusing_contents(self, changes: Sequence[Change]) -> Iterator[None]:
        """Stand-ins are in the place of the containers; their contents are put into these afterwards, as the forward
        pass would have done."""
        replaced = []
        for change in changes:
            members = vars(change.module)
            made = stand_in(members[change.key], partial(self._reading, change))
            replaced.append((change, members, members[change.key], made))
            members[change.key] = made
        try:
            yield
        except TypeError as error:  # what was there before is no tensor, says a function in C or the model's own code
            if replaced:
                raise self._reading(replaced[0][0]) from error
            raise
        finally:
            for change, members, container, made in replaced:
                if members.get(change.key) is made:
                    members[change.key] = container
                    how, contents = outcome(made)
                    self.found.done[id(container)] = how, contents
                    apply(how, container, contents)

    def _reading(self, change: Change) -> StatefulForward:
        return StatefulForward(
            f"the forward pass reads what {self._place(change)} holds before it empties it, so that it depends on the "
            "calls before; empty it at the beginning of the forward pass, or keep such records outside of the model"
        )

    def _stateful(self, change: Change) -> StatefulForward:
        return StatefulForward(
            f"the forward pass reads {self._place(change)} and then assigns it: what it computes depends on the call "
            f"before; {RUN_ONCE}. {KEEP}"
        )


def another_path(writes: Sequence[Write], outputs: Sequence[Any]) -> str | None:
    """The condition by which a step's forward pass would have taken another path than the planned one."""
    for write in writes:
        if write.expected is not None and bool(outputs[write.leaves[0][1]]) is not write.expected:
            return f"{write.key} (planned where the condition's tensor is {write.expected})"
    return None


def assign(model: torch.nn.Module, writes: Sequence[Write], outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Do what a step's forward pass would have done. ``outputs``, ``inputs``: flattened, further outputs included."""
    for write in writes:
        if write.expected is not None:
            continue
        held, key = write.held(model)
        if write.leaves and write.leaves[0][0] == ADDED:
            before = held.get(key, NOTHING)  # it may be the class's
            held[key] = (getattr(model.get_submodule(write.module), key) if before is NOTHING else before) + (
                write.leaves[0][1]
            )
            continue
        leaves = [_found(model, kind, where, outputs, inputs) for kind, where in write.leaves]
        value = pytree.tree_unflatten(leaves, write.structure)
        if write.in_place:
            apply(write.in_place, held[key], value)
        else:
            held[key] = value


def release(model: torch.nn.Module, writes: Sequence[Write]) -> None:
    """Before a step: drop what the step before has assigned and this one assigns anew, so that both are not there
    together."""
    for write in writes:
        if write.expected is None and not write.in_place and any(kind == OUTPUT for kind, _ in write.leaves):
            held, key = write.held(model)
            if key in held:
                held[key] = None


def _found(model: torch.nn.Module, kind: str, where: Any, outputs: Sequence[Any], inputs: Sequence[Any]) -> Any:
    if kind == OUTPUT:
        return outputs[where]
    if kind == INPUT:
        return inputs[where]
    if kind == MEMBER:
        path, _, name = where.rpartition(".")
        owner = model.get_submodule(path)
        return owner._parameters[name] if name in owner._parameters else owner._buffers[name]
    return where


def _not_again(place: str, what: str) -> str:
    return (
        f"the forward pass assigns {what} to {place}, which a planned step could not make again; assign tensors, "
        "numbers or texts, or lists and dictionaries of these"
    )


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def inner(tensor: torch.Tensor) -> torch.Tensor:
    """Of a tensor in a trace: what it stands around."""
    return tensor.from_functional() if isinstance(tensor, FunctionalTensor) else tensor


def has_memory_of_its_own(tensor: torch.Tensor, taken: set[int]) -> bool:
    """Whether it is all that its memory holds, and that is not among ``taken``, to which it is added."""
    storage = tensor.untyped_storage()
    alone = storage._cdata not in taken and storage.nbytes() == tensor.numel() * tensor.dtype.itemsize
    taken.add(storage._cdata)
    return alone


def _holds_modules(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, dict):
        return any(isinstance(item, torch.nn.Module) for item in value.values())
    return isinstance(value, list | tuple) and any(isinstance(item, torch.nn.Module) for item in value)
