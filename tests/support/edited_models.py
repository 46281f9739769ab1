"""Small models that read many kinds of things in Python, and edits of one thing each."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

GLOBAL_FACTOR = 1.0
GLOBAL_LIST = [1.0, 1.0]
Edit = Callable[[Any], object]


def global_function(x: Tensor) -> Tensor:
    return x * GLOBAL_FACTOR * GLOBAL_LIST[0]


class Kind(enum.Enum):
    PLAIN = 0
    TWICE = 1


@dataclass
class Config:
    factor: float = 1.0
    inner: dict[str, Any] = field(default_factory=lambda: {"shift": 0.0, "sizes": [1, 2]})


class Part(nn.Module):
    """Reads attributes of all kinds; 6 numbers in, 6 out."""

    class_factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(6, 6), nn.Dropout(0.2), nn.LayerNorm(6)
        self.scale, self.flag, self.mode, self.kind = 1.0, False, "tanh", Kind.PLAIN
        self.numbers, self.table, self.pair, self.names = [1.0, 2.0], {"a": 1.0}, (1.0, 2.0), {"plain"}
        self.config, self.function, self.bound = Config(), F.relu, functools.partial(torch.clamp, min=-5.0)
        self.constant, self.unused = torch.ones(6), 0
        self.mean = nn.Buffer(torch.zeros(6))
        self.optional: Any = None

    @property
    def doubled(self) -> float:
        return 2 * self.scale

    @staticmethod
    def shifted(x: Tensor) -> Tensor:
        return x + 0.5

    def helper(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if self.mode == "tanh" else torch.sigmoid(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.drop(self.function(self.layer(x)))) * self.scale * self.doubled * self.class_factor
        x = self.bound(self.helper(x) * self.numbers[0] * self.table["a"] * self.pair[1])
        x = global_function(x * self.config.factor + self.config.inner["shift"]) + self.mean + self.constant
        if self.flag or self.kind is Kind.TWICE or "twice" in self.names:
            x = x * 2
        if self.optional is not None:
            x = self.optional(x)
        out: Tensor = self.shifted(x) * self.config.inner["sizes"][0]
        return out


class OtherPart(Part):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 3


class Looped(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.by_name = nn.ModuleList(layers), nn.ModuleDict({"last": nn.Linear(6, 6)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + x
        for layer in self.by_name.values():
            x = layer(x)
        return x


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first, self.second, self.part = nn.Linear(6, 6), nn.Linear(6, 6), Part()
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.part(torch.relu(self.first(x))))
        return out


class Assigning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.last, self.calls = Part(), None, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.part(x)
        self.last = y.detach()  # type: ignore[assignment]
        return y * 2


class Images(nn.Module):
    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.more = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sequential(*more)
        self.head, self.part = nn.Linear(4 * 6, 6), Part()

    def forward(self, x: Tensor) -> Tensor:
        x = self.more(F.relu(self.norm(self.conv(x[:, None, None].expand(-1, 1, 6, 6)))))
        out: Tensor = self.part(self.head(x.mean(3).flatten(1)))
        return out


class Sequence(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        makes: dict[str, Callable[[], nn.Module]] = {
            "gru": lambda: nn.GRU(6, 6, batch_first=True),
            "attention": lambda: nn.MultiheadAttention(6, 2, dropout=0.1, batch_first=True),
            "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 12, 0.1, batch_first=True),
        }
        self.kind, self.of, self.part = kind, makes[kind](), Part()

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None].expand(-1, 3, 6) * torch.arange(1, 4)[:, None]
        y = self.of(x, x, x)[0] if self.kind == "attention" else self.of(x)
        out: Tensor = self.part((y[0] if isinstance(y, tuple) else y).sum(1))
        return out


class Counted(nn.Module):
    """Embeddings that are tied to the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.part, self.out = nn.Embedding(9, 6), Part(), nn.Linear(6, 9, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.part(self.embedding((x.detach().abs() * 3).long().clamp(max=8)).mean(1)))
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "part": Part,
    "sequential": lambda: nn.Sequential(Part(), nn.Linear(6, 6), nn.Dropout(0.1), Part()),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU()), nn.Sequential(Part(), nn.Tanh())),
    "looped": lambda: Looped(nn.Linear(6, 6), Part(), nn.Linear(6, 6)),
    "two loops": lambda: Looped(Looped(nn.Linear(6, 6)), Looped(Part(), nn.GELU())),
    "tied": lambda: Tied(tied=True),
    "not tied": lambda: Tied(tied=False),
    "embedding": Counted,
    "assigning": Assigning,
    "images": Images,
    "images, dropout": lambda: Images(nn.Dropout2d(0.2), nn.Conv2d(4, 4, 1)),
    "images, padding": lambda: Images(nn.ReflectionPad2d(1), nn.MaxPool2d(3, stride=1)),
    "images, groups": lambda: Images(nn.GroupNorm(2, 4), nn.Softplus()),
    "gru": lambda: Sequence("gru"),
    "attention": lambda: Sequence("attention"),
    "encoder": lambda: Sequence("encoder"),
    "normalised": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=0.3), Part(), nn.RMSNorm(6)),
    "activations": lambda: nn.Sequential(nn.Linear(6, 12), nn.GLU(), Part(), nn.PReLU(), nn.Softmax(dim=1)),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), Part()),
    "pruned": lambda: nn.Sequential(prune.l1_unstructured(nn.Linear(6, 6), "weight", amount=0.3), Part()),
}


def _none(*_: object) -> None:
    """What an edit returns that is done, whatever its call returns."""


def _first(model: nn.Module, kind: type | tuple[type, ...]) -> Any:
    return next((module for module in model.modules() if isinstance(module, kind)), None)


def _last(model: nn.Module, kind: type | tuple[type, ...]) -> Any:
    return next((module for module in reversed(list(model.modules())) if isinstance(module, kind)), None)


def _double(module: Any, args: Any, out: Any) -> Any:
    return out * 2 if isinstance(out, Tensor) else None


def _double_in_place(module: Any, args: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        out.mul_(2)


def _double_input(module: Any, args: Any) -> Any:
    return tuple(2 * arg if isinstance(arg, Tensor) else arg for arg in args)


def _with_kwargs(module: Any, args: Any, kwargs: Any, out: Any) -> Any:
    return out + 1 if isinstance(out, Tensor) else None


def _double_gradient(module: Any, into: Any, out: Any) -> Any:
    return tuple(None if grad is None else grad * 2 for grad in into)


def _look(module: Any, args: Any, out: Any) -> None:
    GLOBAL_LIST[-1] = 1.0


def _of(kind: Any, last: bool, edit: Callable[[Any], object]) -> Edit:
    """``edit`` of the model's first or last part of that kind, where it has one."""

    def edited(model: nn.Module) -> object:
        part = (_last if last else _first)(model, kind)
        return False if part is None else edit(part)

    return edited


def _set(name: str, value: Any) -> Callable[[Any], object]:
    return lambda part: setattr(part, name, value)


def _replaced(model: nn.Module, part: nn.Module, by: nn.Module) -> object:
    for module in model.modules():
        for name, child in module.named_children():
            if child is part:
                setattr(module, name, by) if not isinstance(module, nn.ModuleList | nn.Sequential) else (
                    module.__setitem__(int(name), by)
                )
                return None
    return False


def _new(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone() * 1.5)


def _swapped_children(model: nn.Module) -> object:
    part = _first(model, (nn.ModuleList, nn.Sequential))
    if part is None or len(part) < 2:
        return False
    part[0], part[1] = part[1], part[0]
    return None


def _tie(model: nn.Module) -> object:
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.shape == (6, 6)]
    layers = [m for m in layers if "weight" in m._parameters]
    if len(layers) < 2:
        return False
    layers[-1].weight = layers[0].weight
    return None


def _untie(model: Any) -> object:
    part = getattr(model, "second", getattr(model, "out", None))
    if part is None:
        return False
    part.weight = _new(part.weight)
    return None


def _patched(cls: type, name: str, value: Any) -> Callable[[Any], object]:
    def edit(_: Any) -> Callable[[], object]:
        before = vars(cls)[name]
        setattr(cls, name, value(before))
        return lambda: setattr(cls, name, before)

    return edit


def _patched_global(of: dict[str, Any], name: str, value: Any) -> Callable[[Any], object]:
    def edit(_: Any) -> Callable[[], object]:
        before = of[name]
        of[name] = value(before)
        return lambda: of.__setitem__(name, before)

    return edit


def _switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Edit:
    def edit(_: Any) -> Callable[[], object]:
        before = get()
        put(value)
        return lambda: put(before)

    return edit


def _everywhere(register: Callable[[Any], Any], hook: Any) -> Edit:
    return lambda _: register(hook).remove


def _of_children(model: nn.Module, change: Callable[[Any], object]) -> object:
    part = _first(model, (nn.ModuleList, nn.Sequential))
    return False if part is None or len(part) == 0 else change(part)


def _of_parameters(change: Callable[[nn.Module, str, Any], object], last: bool) -> Edit:
    def edit(model: nn.Module) -> object:
        found = [(m, n, p) for m in model.modules() for n, p in m._parameters.items() if p is not None]
        return change(*found[-1 if last else 0])

    return edit


def _reloaded(model: nn.Module, assign: bool) -> None:
    state = {name: value.clone() * 1.1 for name, value in model.state_dict().items()}
    for name, value in state.items():
        if not value.is_floating_point():
            state[name] = value.long()
    model.load_state_dict(state, assign=assign)


def _remove_bias(part: Any) -> None:
    part.bias = None


def _normed(part: Any) -> object:
    """False where its weight is made of others already."""
    if "weight" not in part._parameters:
        return False
    parametrizations.spectral_norm(part)
    return None


def _edits() -> Iterator[tuple[str, Edit]]:
    leaves = (nn.Linear, nn.Conv2d, nn.Embedding)
    hooks = nn.modules.module
    for last in (False, True):
        where = "last" if last else "first"
        for kind, name in ((leaves, "layer"), (Part, "part"), (nn.LayerNorm, "norm")):
            of = functools.partial(_of, kind, last)
            yield f"hook of the {where} {name}", of(lambda part: _none(part.register_forward_hook(_double)))
            yield (
                f"hook in place of the {where} {name}",
                of(lambda p: _none(p.register_forward_hook(_double_in_place))),
            )
            yield f"pre-hook of the {where} {name}", of(lambda p: _none(p.register_forward_pre_hook(_double_input)))
            yield f"mode of the {where} {name}", of(lambda part: _none(part.eval()))
        of = functools.partial(_of, leaves, last)
        yield (
            f"hook with kwargs {where}",
            of(lambda p: _none(p.register_forward_hook(_with_kwargs, with_kwargs=True))),
        )
        yield f"hook that looks {where}", of(lambda part: _none(part.register_forward_hook(_look)))
        of = functools.partial(_of, Part, last)
        yield f"backward hook {where}", of(lambda part: _none(part.register_full_backward_hook(_double_gradient)))
        yield (
            f"backward pre-hook {where}",
            of(lambda part: part.register_full_backward_pre_hook(lambda module, out: _none((out[0] * 2,)))),
        )
        yield f"scale {where}", of(_set("scale", 3.0))
        yield f"flag {where}", of(_set("flag", True))
        yield f"mode text {where}", of(_set("mode", "sigmoid"))
        yield f"kind {where}", of(_set("kind", Kind.TWICE))
        yield f"entry of a list {where}", of(lambda part: part.numbers.__setitem__(0, 7.0))
        yield f"another list {where}", of(_set("numbers", [4.0]))
        yield f"entry of a dictionary {where}", of(lambda part: part.table.__setitem__("a", 7.0))
        yield f"tuple {where}", of(_set("pair", (1.0, 5.0)))
        yield f"set {where}", of(lambda part: part.names.add("twice"))
        yield f"field of a configuration {where}", of(lambda part: setattr(part.config, "factor", 4.0))
        yield f"entry within a configuration {where}", of(lambda part: part.config.inner.__setitem__("shift", 4.0))
        yield f"list within a configuration {where}", of(lambda part: part.config.inner["sizes"].__setitem__(0, 3))
        yield f"another configuration {where}", of(_set("config", Config(2.0)))
        yield f"function {where}", of(_set("function", torch.sigmoid))
        yield f"partial {where}", of(_set("bound", functools.partial(torch.clamp, min=0.0)))
        yield f"another constant {where}", of(_set("constant", torch.full((6,), 3.0)))
        yield f"values of a constant {where}", of(lambda part: _none(part.constant.mul_(5)))
        yield f"unused {where}", of(_set("unused", 5))
        yield f"a layer more {where}", of(lambda part: setattr(part, "optional", nn.Linear(6, 6)))
        yield (
            f"forward of the object {where}",
            of(lambda part: setattr(part, "forward", types.MethodType(lambda self, x: x * self.scale, part))),
        )
        yield f"class of the object {where}", of(lambda part: setattr(part, "__class__", OtherPart))
        yield f"buffer {where}", of(_set("mean", torch.full((6,), 2.0)))
        yield f"values of a buffer {where}", of(lambda part: _none(part.mean.add_(2)))
        yield f"a new buffer {where}", of(lambda part: part.register_buffer("more", torch.ones(2)))
        yield f"class of an attribute of the class {where}", of(_set("class_factor", 2.0))
        yield f"deleted {where}", of(lambda part: delattr(part, "table"))
        of = functools.partial(_of, nn.Dropout, last)
        yield f"dropout {where}", of(_set("p", 0.7))
        yield f"no dropout {where}", of(lambda part: _none(part.eval()))
        of = functools.partial(_of, nn.LayerNorm, last)
        yield f"eps {where}", of(_set("eps", 0.5))
        of = functools.partial(_of, nn.Linear, last)
        yield f"no bias {where}", of(_remove_bias)
        yield f"pruned {where}", of(lambda part: _none(prune.l1_unstructured(part, "weight", amount=0.5)))
        yield f"weight norm {where}", of(lambda part: _none(parametrizations.weight_norm(part)))
        yield f"spectral norm {where}", of(_normed)
        yield f"frozen {where}", of(lambda part: _none(part.requires_grad_(False)))
        for named, change in (
            ("another parameter", lambda m, n, p: m._parameters.__setitem__(n, _new(p))),
            ("data", lambda m, n, p: setattr(p, "data", p.detach().clone() * 2)),
            ("values", lambda m, n, p: _none(p.data.mul_(1.5))),
            ("requires_grad", lambda m, n, p: _none(p.requires_grad_(False))),
            ("hook of a parameter", lambda m, n, p: p.register_hook(lambda grad: _none(grad * 3))),
        ):
            yield f"{named} {where}", _of_parameters(change, last)
    yield "hook of the model", lambda m: _none(m.register_forward_hook(_double))
    yield "pre-hook of the model", lambda m: _none(m.register_forward_pre_hook(_double_input))
    yield "backward hook of the model", lambda m: _none(m.register_full_backward_hook(_double_gradient))
    yield "hook of every module", _everywhere(hooks.register_module_forward_hook, _double)
    yield "pre-hook of every module", _everywhere(hooks.register_module_forward_pre_hook, _double_input)
    yield "momentum", _of((nn.BatchNorm1d, nn.BatchNorm2d), False, _set("momentum", 0.9))
    yield "eps of a batch norm", _of((nn.BatchNorm1d, nn.BatchNorm2d), False, _set("eps", 0.4))
    yield "batch norm in evaluation", _of((nn.BatchNorm1d, nn.BatchNorm2d), False, lambda part: _none(part.eval()))
    yield "padding of a convolution", _of(nn.Conv2d, False, _set("padding", (0, 1)))
    yield "slope", _of(nn.LeakyReLU, False, _set("negative_slope", 0.5))
    yield "dim of a softmax", _of(nn.Softmax, False, _set("dim", 0))
    yield "groups", _of(nn.GroupNorm, False, _set("num_groups", 4))
    yield "dropout of attention", _of(nn.MultiheadAttention, False, _set("dropout", 0.8))
    yield "layers swapped", _swapped_children
    yield "a layer appended", lambda m: _of_children(m, lambda part: _none(part.append(nn.Tanh())))
    yield "a layer inserted", lambda m: _of_children(m, lambda part: _none(part.insert(0, nn.Tanh())))
    yield "a layer removed", lambda m: _of_children(m, lambda part: part.__delitem__(-1))
    yield "an entry of a ModuleDict", _of(nn.ModuleDict, False, lambda part: part.__setitem__("more", nn.Linear(6, 6)))
    yield "a layer replaced", lambda m: _replaced(m, _last(m, nn.Linear), nn.Linear(6, 6))
    yield "a layer left out", lambda m: _replaced(m, _last(m, nn.LayerNorm), nn.Identity())
    yield "tied", _tie
    yield "untied", _untie
    yield "state loaded", lambda m: _reloaded(m, False)
    yield "state assigned", lambda m: _reloaded(m, True)
    yield "evaluated and trained again", lambda m: _none(m.eval() and m.train())
    yield "in double precision", lambda m: _none(m.double())
    yield "forward of the class", _patched(Part, "forward", lambda was: lambda self, x: was(self, x) * 2)
    yield "helper of the class", _patched(Part, "helper", lambda was: lambda self, x: torch.sigmoid(x))
    yield "property of the class", _patched(Part, "doubled", lambda was: property(lambda self: 5.0))
    yield "static method", _patched(Part, "shifted", lambda was: staticmethod(lambda x: x - 2))
    yield "attribute of the class", _patched(Part, "class_factor", lambda was: 4.0)
    yield "forward of Linear", _patched(nn.Linear, "forward", lambda was: lambda self, x: was(self, x) * 2)
    yield "global number", _patched_global(globals(), "GLOBAL_FACTOR", lambda was: 5.0)
    yield "global list", _patched_global(globals(), "GLOBAL_LIST", lambda was: [3.0, 1.0])
    yield "global function", _patched_global(globals(), "global_function", lambda was: lambda x: x * 9)
    yield "function of PyTorch", _patched_global(vars(F), "linear", lambda was: lambda *a: was(*a) * 2)
    yield "default dtype", _switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
    yield "threads", _switched(torch.get_num_threads, torch.set_num_threads, 1)


EDITS: dict[str, Edit] = dict(_edits())
