"""Steps of a plan as lines of Python: their calls, the views that they read, and when variables are deleted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from monet.base.graph import Operator, Ref, operator_inputs
from monet.base.sizes import Ratio, Size, sizes_in
from monet.errors import InvalidPlan
from monet.executor.copying.copies import Copies
from monet.executor.places import Places
from monet.executor.varying import Varying
from monet.ops.catalogue import Catalogue
from monet.ops.offers.implementation import Implementation
from monet.plans.format import READ, WRITE


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A step that issues a copy to or from the second memory, or waits for one: fields as in ``PlanStep``.

    ``size``: of the buffer. ``back``: it waits for a copy from there.
    """

    kind: str
    storage: str
    place: int
    size: int
    back: bool


@dataclass
class StepWriter:
    """Lines of source, and which values have a variable after the last of them.

    ``views``: value → the view operator that makes it. ``dying``: step → storages whose buffer nothing uses after it.
    ``copies``: what copies go through, where there are any. ``varying``: where sizes vary, what they are in a call.
    ``places``: where results are to be looked for.
    """

    catalogue: Catalogue
    views: Mapping[str, Operator]
    dying: Mapping[int, Set[str]]
    copies: Copies | None = None
    varying: Varying | None = None
    places: Places | None = None
    names: dict[str, Any] = field(default_factory=dict)  # global name → object
    lines: list[str] = field(default_factory=list)
    alive: dict[str, set[str]] = field(default_factory=dict)  # storage → values with a variable
    variables: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _calls: dict[Any, str] = field(default_factory=dict)

    def variable(self, value: str) -> str:
        """The name of the value's variable, which no other value has."""
        if value not in self.variables:
            plain = "v_" + re.sub(r"\W", "_", value)
            name, n = plain, 1
            while name in self._taken:
                name, n = f"{plain}_{n}", n + 1
            self._taken.add(name)
            self.variables[value] = name
        return self.variables[value]

    def constant(self, thing: Any, hint: str) -> str:
        """The name of a new global that is ``thing``; it begins with ``hint``."""
        name = f"{hint}{len(self.names)}"
        self.names[name] = thing
        return name

    def callee(self, function: Any) -> str:
        """The name of the one global that is the function."""
        if function not in self._calls:
            # Calling torch's object for an operator calls a function in Python, which calls this one.
            self._calls[function] = self.constant(getattr(function, "_op", function), "f_")
        return self._calls[function]

    def argument(self, argument: Any) -> str:
        """An argument tree as an expression."""
        if isinstance(argument, Ref):
            return self.variable(argument.name)
        if isinstance(argument, list | tuple):
            inner = ", ".join(self.argument(item) for item in argument)
            return f"[{inner}]"
        if isinstance(argument, Size | Ratio) and self.varying is not None:
            self.names["sizes"] = self.varying.sizes
            return f"sizes[{self.varying.position(argument)}]"
        if argument is None or isinstance(argument, bool | int | str):
            return repr(argument)
        return self.constant(argument, "c_")  # floats too: inf and nan have no literal

    def call(self, function: Any, args: Any, kwargs: Any) -> str:
        """A call as an expression."""
        parts = [self.argument(a) for a in args] + [f"{k}={self.argument(v)}" for k, v in kwargs]
        return f"{self.callee(function)}({', '.join(parts)})"

    def ensure(self, value: str) -> None:
        """Emit the views that lead to ``value``, unless it has a variable already."""
        storage = self.catalogue.storage(value)
        if value in self.alive.get(storage, ()):
            return
        view = self.views.get(value)
        if view is None:
            raise InvalidPlan(f"{value} is read where nothing has made it")
        for name in operator_inputs(view):
            self.ensure(name)
        if view.single:
            targets = [value]
            self.lines.append(f"{self.variable(value)} = {self.call(view.target, view.args, view.kwargs)}")
        else:
            targets = [n for n in view.outputs if n is not None]
            self._assign(view.outputs, self.call(view.target, view.args, view.kwargs))
        self.alive.setdefault(storage, set()).update(targets)

    def _assign(self, results: Sequence[str | None], call: str) -> None:
        """Emit the assignment of several results; those that nobody reads are released at once."""
        left = ", ".join("_" if name is None else self.variable(name) for name in results)
        self.lines.append(f"{left}, = {call}")
        if None in results:
            self.lines.append("del _")

    def define(self, values: Iterable[str]) -> None:
        """Count these as having a variable: the function is given them."""
        for value in values:
            self.alive.setdefault(self.catalogue.storage(value), set()).add(value)

    def born(self, value: str) -> None:
        """The value's storage is made anew: no other value of it has a variable."""
        self.alive[self.catalogue.storage(value)] = {value}

    def release(self, storages: Iterable[str]) -> None:
        """Emit the deletion of all variables of these storages."""
        gone = sorted(self.variable(v) for storage in storages for v in self.alive.pop(storage, ()))
        if gone:
            self.lines.append(f"del {', '.join(gone)}")

    def hand_out(self, values: Sequence[str]) -> None:
        """Emit a ``yield`` of a list of these, after which the function itself holds nothing of their storages."""
        for value in values:
            self.ensure(value)
        self.lines.append(f"part = [{', '.join(map(self.variable, values))}]")
        self.release(sorted({self.catalogue.storage(value) for value in values}))
        self.lines.append("yield part")

    def step(self, index: int, step: Implementation | CopyStep) -> None:
        """Emit a step, and delete the variables of what it is the last to use."""
        if isinstance(step, CopyStep):
            self._copy(index, step)
        else:
            self._run(index, step)
        self.release(sorted(self.dying.get(index, ())))

    def _copy(self, index: int, step: CopyStep) -> None:
        assert self.copies is not None
        self.lines.append(f"enter(handle, {index})")
        if step.kind == WRITE:
            if not self.alive.get(step.storage):
                raise InvalidPlan(f"{step.storage} is written to the second memory where nothing has made it")
            alive = self.variable(min(self.alive[step.storage]))
            self.lines.append(f"{self.callee(self.copies.write)}({alive}, {step.place}, {step.size})")
        elif step.kind == READ:
            value, coming = self.catalogue.values[step.storage], self._coming(step.storage)
            made = f"{self.callee(self.copies.read)}({self.constant(value, 'c_')}, {step.place}, {step.size})"
            self.lines.append(f"{coming} = {made}")
            if self.varying is not None and list(sizes_in((value.shape, value.stride, value.offset))):
                # All that is planned is copied, and what this call has of it lies at the beginning.
                geometry = ", ".join(map(self.argument, (value.shape, value.stride, value.offset)))
                self.lines.append(f"{coming}.as_strided_({geometry})")
        else:
            self.lines.append(f"{self.callee(self.copies.wait)}({step.place})")
            if step.back:
                coming = self._coming(step.storage)
                self.lines.append(f"{self.variable(step.storage)} = {coming}")
                self.lines.append(f"del {coming}")
                self.born(step.storage)
                for name in self._tied.get(step.storage, ()):
                    self.lines.append(f"{self.variable(name)} = {self.variable(step.storage)}")
                    self.alive[step.storage].add(name)

    @cached_property
    def _tied(self) -> Mapping[str, Sequence[str]]:
        """Storage → other names of it that the step is given: a tied parameter has several."""
        names: dict[str, list[str]] = {}
        for source in self.catalogue.graph.sources:
            storage = self.catalogue.storage(source.value)
            if storage != source.value:
                names.setdefault(storage, []).append(source.value)
        return names

    def _coming(self, storage: str) -> str:
        """The variable of what is being read back; the value's own may still be there."""
        return f"coming_{self.variable(storage)}"

    def _run(self, index: int, implementation: Implementation) -> None:
        for name in implementation.inputs():
            self.ensure(name)
        self.lines.append(f"enter(handle, {index})")
        right = self.call(implementation.call, implementation.args, implementation.kwargs)
        results = implementation.outputs
        if implementation.overwrites is not None:
            # The old content is gone: its variables go too, before the storage can be made anew.
            old = self.catalogue.storage(implementation.overwrites)
            stale = self.alive.pop(old, set())
        else:
            stale = set()
        if not any(results):
            self.lines.append(right)
        elif implementation.single:
            self.lines.append(f"{self.variable(results[0])} = {right}")  # type: ignore[arg-type]
        else:
            self._assign(results, right)
        for result in results:
            if result is not None:
                self.born(result)
                if self.varying is not None and (index, result) in self.varying.places:
                    name = self.variable(result)
                    self.lines.append(f"{name} = {self.callee(self.varying.settled)}({index}, {result!r}, {name})")
                elif self.places is not None and result in self.places.offsets.get(index, ()):
                    self.names["unseen"] = self.places.unseen
                    look = f"{self.callee(self.places.look)}({index}, {result!r}, {self.variable(result)})"
                    self.lines.append(f"if unseen: {look}")
        if stale:
            self.lines.append(f"del {', '.join(sorted(self.variable(v) for v in stale))}")

    def taken_lines(self) -> tuple[str, ...]:
        """The lines so far, which are one function's body; the next line is the first of another."""
        lines, self.lines = tuple(self.lines), []
        return lines
