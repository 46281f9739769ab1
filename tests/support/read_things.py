"""Models that each read one thing in Python from an unusual place, and an edit of it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy
import settings_read
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[Callable[[], Any], Callable[[Any], object]]
CASES: dict[str, Case] = {}
ACT = nn.LeakyReLU(0.1)
TABLE: dict[str, Any] = {"a": torch.tanh}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.k = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(torch.tanh(self.l(x)))

    def end(self, x: Tensor) -> Tensor:
        out: Tensor = self.k(x)
        return out


class Op:
    def __init__(self) -> None:
        self.v = 1.0

    def apply(self, x: Tensor) -> Tensor:
        return x * self.v


BOUND = Op()
APPLY = BOUND.apply


@dataclasses.dataclass(slots=True)
class Slots:
    scale: float = 1.0


class AttrDict(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


def model(forward: Callable[[Any, Tensor], Tensor], **attributes: Callable[[], Any]) -> Callable[[], Any]:
    """Makes models of a class of their own with this forward pass and these attributes."""

    class Reads(Two):
        def __init__(self) -> None:
            super().__init__()
            for name, make in attributes.items():
                setattr(self, name, make())

    Reads.forward = forward  # type: ignore[method-assign, assignment]
    return Reads


def case(name: str, made: Callable[[], Any], edit: Callable[[Any], object]) -> None:
    CASES[name] = made, edit


def of_settings(x: Tensor) -> Tensor:
    return x * settings_read.FACTOR


case(
    "a number of a module that two functions read",
    model(lambda self, x: self.end(of_settings(x) + settings_read.SHIFT)),
    lambda m: setattr(settings_read, "SHIFT", 2.0),
)
case("the other one", model(lambda self, x: self.end(of_settings(x))), lambda m: setattr(settings_read, "FACTOR", 3.0))


def _imports(self: Any, x: Tensor) -> Tensor:
    import settings_read as read
    from settings_read import EXTRA

    out: Tensor = self.end(x * EXTRA + read.SHIFT)
    return out


case("an import inside", model(_imports), lambda m: setattr(settings_read, "EXTRA", 3.0))
case(
    "an attribute of a class of a module",
    model(lambda self, x: self.end(x * settings_read.Numbers.gain)),
    lambda m: setattr(settings_read.Numbers, "gain", 3.0),
)
case(
    "one function of two that layers call",
    model(lambda self, x: self.end(self.g(self.r(x))), r=nn.ReLU, g=nn.GELU),
    lambda m: setattr(F, "gelu", lambda *args, **kwargs: args[0] * 2),
)
case(
    "an attribute by a name that another holds",
    model(lambda self, x: self.end(x * getattr(self, self.key)), key=lambda: "sa", sa=lambda: 1.0),
    lambda m: setattr(m, "sa", 3.0),
)
case(
    "an attribute by a made name",
    model(lambda self, x: self.end(x * getattr(self, f"scale_{self.n}")), n=lambda: 1, scale_1=lambda: 1.0),
    lambda m: setattr(m, "scale_1", 3.0),
)


def _each(self: Any, x: Tensor) -> Tensor:
    for part in self.d.values():
        x = part(x)
    out: Tensor = self.end(x)
    return out


def _last(of: Any) -> None:
    of["a"] = of.pop("a")


case("an order of functions", model(_each, d=lambda: {"a": torch.tanh, "b": lambda x: x * 2}), lambda m: _last(m.d))
case(
    "an order of modules",
    model(_each, d=lambda: nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Tanh()})),
    lambda m: _last(m.d),
)
case("a slot", model(lambda self, x: self.end(x * self.c.scale), c=Slots), lambda m: setattr(m.c, "scale", 3.0))
case(
    "a dictionary with attributes",
    model(lambda self, x: self.end(x * self.c.scale), c=lambda: AttrDict(scale=1.0)),
    lambda m: m.c.update(scale=3.0),
)
case(
    "a dictionary of the user's",
    model(lambda self, x: self.end(x * self.c["s"]), c=lambda: collections.UserDict(s=1.0)),
    lambda m: m.c.update(s=3.0),
)
case(
    "a queue",
    model(lambda self, x: self.end(x * self.c[0]), c=lambda: collections.deque([1.0])),
    lambda m: m.c.__setitem__(0, 3.0),
)
case(
    "an array",
    model(lambda self, x: self.end(x * float(self.c[0])), c=lambda: numpy.ones(1)),
    lambda m: m.c.__setitem__(0, 3.0),
)
case(
    "a module in a list",
    model(lambda self, x: self.end(self.c[0](x)), c=lambda: [nn.LeakyReLU(0.1)]),
    lambda m: setattr(m.c[0], "negative_slope", 3.0),
)
case(
    "a hook of a module in a list",
    model(lambda self, x: self.end(self.c[0](x)), c=lambda: [nn.Tanh()]),
    lambda m: m.c[0].register_forward_hook(lambda module, args, out: out * 2) and None,
)
case("a global module", model(lambda self, x: self.end(ACT(x))), lambda m: setattr(ACT, "negative_slope", 3.0))


def _teacher() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).requires_grad_(False).eval()]


_taught = model(lambda self, x: self.end(x) - self.t[0](x), t=_teacher)
case("a teacher's mode", _taught, lambda m: m.t[0].train())
case("a teacher's weights in place", _taught, lambda m: [p.mul_(1.5) for p in m.t[0].parameters()])
case("a teacher's other weights", _taught, lambda m: [p.set_(p * 1.5) for p in m.t[0].parameters()])


def _other_data(m: Any) -> None:
    for p in m.t[0].parameters():
        p.data = p * 1.5


case("a teacher's data", _taught, _other_data)
case(
    "a tensor in a list",
    model(lambda self, x: self.end(x * self.c[0]), c=lambda: [torch.ones(6)]),
    lambda m: m.c[0].mul_(3),
)
case(
    "what a method is bound to",
    model(lambda self, x: self.end(self.fn(x)), fn=lambda: Op().apply),
    lambda m: setattr(m.fn.__self__, "v", 3.0),
)
case("what a global method is bound to", model(lambda self, x: self.end(APPLY(x))), lambda m: setattr(BOUND, "v", 3.0))
case(
    "a global table",
    model(lambda self, x: self.end(TABLE["a"](x))),
    lambda m: TABLE.update(a=torch.sigmoid),
)


class OfClass(Two):
    options = Op()
    table: dict[str, float] = {"a": 1.0}  # noqa: RUF012
    numbers = [1.0]  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x * self.options.v * self.table["a"] * self.numbers[0])


case("an object of the class", OfClass, lambda m: setattr(OfClass.options, "v", 3.0))
case("a table of the class", OfClass, lambda m: OfClass.table.update(a=3.0))
case("a list of the class", OfClass, lambda m: OfClass.numbers.__setitem__(0, 3.0))


class Default(Two):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.end(x * scale)


case("a default", Default, lambda m: setattr(Default.forward, "__defaults__", (3.0,)))


class Reloaded(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.end(x)


def _other(self: Any, x: Tensor) -> Tensor:
    out: Tensor = self.end(x * 3)
    return out


case("code that is loaded again", Reloaded, lambda m: setattr(Reloaded.forward, "__code__", _other.__code__))


def _closing(scale: float) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = self.end(x * scale)
        return out

    def change(_: Any) -> None:
        nonlocal scale
        scale += 1  # another number each time: all models share it

    return model(forward), change


case("a variable around a function", *_closing(1.0))


def _found(self: Any, x: Tensor) -> Tensor:
    with contextlib.suppress(NameError):
        x = x * LATER  # type: ignore[name-defined]  # noqa: F821
    out: Tensor = self.end(x)
    return out


case("a global that was not there", model(_found), lambda m: globals().update(LATER=3.0))
case(
    "all parameters",
    model(lambda self, x: self.end(x) + sum(p.square().sum() for p in self.parameters())),
    lambda m: m.add_module("more", nn.Linear(2, 2)),
)
case(
    "all attributes",
    model(lambda self, x: self.end(x) * len([n for n in self.__dict__ if n.startswith("z")]), za=lambda: 1),
    lambda m: setattr(m, "zb", 1),
)


class Described:
    def __get__(self, owner: Any, of: Any = None) -> Any:
        return owner.hidden


class WithDescriptor(Two):
    gain = Described()

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x * self.gain)


case("what a descriptor reads", WithDescriptor, lambda m: setattr(m, "hidden", 3.0))
case(
    "arguments of a partial function",
    model(lambda self, x: self.end(self.fn(x)), fn=lambda: functools.partial(torch.clamp, max=0.5)),
    lambda m: m.fn.keywords.update(max=0.1),
)


class Switch:
    def __init__(self) -> None:
        self.function: Any = None

    def hook(self, module: nn.Module, args: Any, out: Tensor) -> Any:
        return self.function(out) if self.function else None


class Hooked(Two):
    def __init__(self) -> None:
        super().__init__()
        self.switch = Switch()
        self.l.register_forward_hook(self.switch.hook)


case("a hook's object", Hooked, lambda m: setattr(m.switch, "function", lambda out: out * 2))
