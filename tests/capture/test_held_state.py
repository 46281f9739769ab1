"""What a forward pass changes that no attribute shows: refused by name, and as it was before."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import numpy
import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn

import monet
from monet.capture import capture
from monet.errors import CaptureError, StatefulForward

pytestmark = pytest.mark.usefixtures("hasty_orders")


class Holds(nn.Module):
    """A layer, and what ``does`` does with ``held``."""

    seen = 0

    def __init__(self, held: Any, does: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.held, self.does = nn.Linear(6, 6), held, does

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        factor = self.does(self.held, y)
        return y if factor is None else y * factor


class Outer(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.part(x)
        return out


GENERATORS: dict[str, tuple[Any, Callable[[Any, Tensor], Any]]] = {
    "random.Random": (random.Random(3), lambda held, y: held.random()),
    "RandomState": (numpy.random.RandomState(3), lambda held, y: float(held.rand())),
    "default_rng": (numpy.random.default_rng(3), lambda held, y: float(held.random())),
    "in a list": ([random.Random(3)], lambda held, y: held[0].random()),
    "in a dictionary": ({"a": (random.Random(3),)}, lambda held, y: held["a"][0].random()),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_random_numbers_of_a_generator_that_the_model_holds_are_refused(kind: str) -> None:
    held, draws = GENERATORS[kind]
    model, other = Outer(Holds(held, draws)), copy.deepcopy(held)
    with pytest.raises(CaptureError, match=r"draws random numbers of Python or NumPy \(part.held\)"):
        capture(model, (torch.randn(2, 6),))
    assert draws(held, torch.ones(1)) == draws(other, torch.ones(1)), "it was put back"


def _endless() -> Iterator[int]:
    yield from itertools.count(5)


@pytest.mark.parametrize(
    ("held", "take"),
    [
        (itertools.count(5), next),
        (_endless(), next),
        (iter([5, 6]), next),
        ({"a": itertools.cycle([5, 6])}, lambda held: next(held["a"])),
        ([(itertools.count(5),)], lambda held: next(held[0][0])),
        (zip([5], strict=True), lambda held: sum(number for (number,) in held)),
    ],
    ids=["count", "generator", "list_iterator", "in a dictionary", "in a tuple", "loop"],
)
def test_an_iterator_is_refused_before_anything_is_taken(held: Any, take: Callable[[Any], int]) -> None:
    model = Holds(held, lambda held, y: take(held))
    with pytest.raises(StatefulForward, match="takes from the model's held, an iterator"):
        capture(model, (torch.randn(2, 6),))
    assert model.held is held and take(held) == 5


def _count_in_data(held: Tensor, y: Tensor) -> Tensor:
    held.data += 1
    return held


WRITES: dict[str, Callable[[Any, Tensor], Any]] = {
    "add_": lambda held, y: held.add_(1),
    "numbers": lambda held, y: held.add_(1).tolist()[0],
    "data": _count_in_data,
}


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("size", [1, 6])
def test_a_tensor_that_counts_in_place_is_refused(kind: str, size: int) -> None:
    held = torch.full((size,), 2.0)
    model, version = Holds(held, WRITES[kind]), held._version
    with pytest.raises(CaptureError, match="." if kind == "data" else "the model's held, a tensor"):
        capture(model, (torch.randn(2, 6),))
    assert model.held is held and held.tolist() == [2.0] * size and held._version == version


def test_a_tensor_in_a_list_that_counts_in_place_is_refused() -> None:
    held = [torch.zeros(1)]
    with pytest.raises(StatefulForward, match=r"the model's held, a tensor.*register_buffer"):
        capture(Holds(held, lambda held, y: held[0].add_(1)), (torch.randn(2, 6),))
    assert held[0].item() == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda held, y: held.copy_(y.detach().sum(0)),
        lambda held, y: held.zero_().add_(y.detach().sum(0)),
        lambda held, y: held.fill_(3),
        lambda held, y: held.add_(y.detach().sum(0)),
    ],
    ids=["copied", "emptied and filled", "constant", "sum"],
)
def test_other_writes_to_a_plain_tensor_are_eagers(write: Callable[[Any, Tensor], Any]) -> None:
    eager, model = (Holds(torch.full((6,), 2.0), write) for _ in range(2))
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    for seed in range(3):
        torch.manual_seed(seed)
        batch = torch.randn(2, 6)
        outputs = [one(batch) for one in (eager, model)]
        for output in outputs:
            output.sum().backward()
        assert torch.equal(*outputs) and torch.equal(eager.held, model.held)
    assert monet.applied(model).planned_calls >= 2


def _count_in_class(held: Any, y: Tensor) -> None:
    Holds.seen += 1


CONTAINERS: dict[str, tuple[Callable[[], Any], Callable[[Any, Tensor], Any], Callable[[Any], Any]]] = {
    "a deque": (lambda: deque(maxlen=2), lambda held, y: held.append(y.detach()), list),
    "a deque in a list": (lambda: [deque()], lambda held, y: held[0].append(y.detach()), lambda held: list(held[0])),
    "a Queue": (Queue, lambda held, y: held.put(y.detach()), lambda held: list(held.queue)),
    "a ndarray": (lambda: numpy.zeros(2), lambda held, y: held.__iadd__(1).sum() * 0 + 1, lambda held: held.tolist()),
    "an attribute of a class": (lambda: None, _count_in_class, lambda held: Holds.seen),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_is_filled_beside_attributes_is_refused(kind: str) -> None:
    make, fill, content = CONTAINERS[kind]
    model = Holds(make(), fill)
    before = content(model.held)
    with pytest.raises(StatefulForward, match=kind.removesuffix(" in a list")):
        capture(model, (torch.randn(2, 6),))
    assert content(model.held) == before and Holds.seen == 0


def test_the_first_call_of_such_a_model_is_eagers() -> None:
    model = Holds(deque(), lambda held, y: held.append(y.detach()))
    monet.apply(model, budget="100%", **HASTE)
    model(torch.randn(2, 6)).sum().backward()
    assert [type(tensor) for tensor in model.held] == [Tensor] and monet.applied(model).eager_calls == 1
    with pytest.raises(StatefulForward, match="the model's held holds, a deque"):
        model(torch.randn(2, 6))
    assert len(model.held) == 1


def test_a_counter_holds_what_it_held() -> None:
    """Its ``update`` counts."""
    model = Holds(Counter(calls=2), lambda held, y: held.__setitem__("calls", held["calls"] + 1))
    with pytest.raises(StatefulForward, match="reads what the model's held holds"):
        capture(model, (torch.randn(2, 6),))
    assert model.held == {"calls": 2}


LOG: deque[Any] = deque()


def test_a_deque_outside_of_the_model_is_a_log(caplog: pytest.LogCaptureFixture) -> None:
    class Notes(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            LOG.append(x.mean())
            return super().forward(x)

    capture(Notes(6, 4), (torch.randn(3, 6),))
    assert not LOG and "adds to LOG, which is no attribute of the model" in caplog.text


class Lengths(nn.Module):
    """A part that decides by values, and becomes an island."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Batch(nn.Module):
    """``of``: what it does with what it is given."""

    def __init__(self, of: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.part, self.of = nn.Linear(6, 6), Lengths(), of

    def forward(self, batch: dict[str, Tensor], found: list[Any]) -> Any:
        y: Tensor = self.layer(batch["x"])
        if self.of == "island":
            y = self.part(y)
        match self.of:
            case "pop" | "island":
                y = y - batch.pop("y")
            case "entry":
                batch["h"] = y
            case "append":
                found.append(y)
            case "returned":
                batch["h"] = y
                return batch
            case "copy":
                batch = dict(batch)
                batch["h"] = y
        return y


def _batch() -> dict[str, Tensor]:
    return {"x": torch.ones(2, 6), "y": torch.zeros(2, 6)}


@pytest.mark.parametrize(
    ("of", "said"),
    [("pop", r"dict .* \(batch\)"), ("entry", r"\(batch\)"), ("append", r"list .* \(found\)"), ("island", "values")],
)
def test_what_is_done_to_what_the_caller_hands_over_is_refused(of: str, said: str) -> None:
    batch, found = _batch(), list[Any]()
    with pytest.raises(CaptureError, match=said):
        capture(Batch(of), (batch,), {"found": found})
    assert list(batch) == ["x", "y"] and not found


@pytest.mark.parametrize("of", ["returned", "copy"])
def test_what_the_caller_gets_back_is_planned(of: str) -> None:
    captured = capture(Batch(of), (_batch(), []))
    assert captured.out_spec.num_leaves == (3 if of == "returned" else 1)
