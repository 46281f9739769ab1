"""Parts that cannot be traced run as they are inside of a plan, and everything is as in eager."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peak_meter import measured_peak_bytes
from slow_cases import slow_but
from torch import Tensor, nn

import monet
from monet.capture import Captured, capture
from monet.capture.islands.finding import modules_to_leave
from monet.errors import CaptureError, ExecutionError, InfeasibleBudget
from monet.ops.offers.offering import Offering
from monet.pipeline.measured_step import write_step
from monet.pipeline.preparation import prepare
from monet.plans.plan import Plan

HASTE: dict[str, Any] = {"exact": True, "time_limit_s": 2, "cores": 1}


class Experts(nn.Module):
    """Sends each token to one of its experts. ``drop``: of an expert's inner values."""

    def __init__(self, width: int = 16, count: int = 4, drop: float = 0.1) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(drop), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            if len(mine):
                out = out.index_add(0, mine, expert(tokens[mine]) * weight[mine, None])
        return out.reshape(x.shape)


class Parts(nn.Module):
    """A layer for each part of its tokens; ``sizes``: numbers."""

    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        parts = tokens.split(sizes, dim=0)
        return torch.cat([layer(part) for layer, part in zip(self.layers, parts, strict=True)])


class Router(nn.Module):
    """Where tokens go: their order by parts, what they are worth, and how many each part gets, as numbers."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate, self.count = nn.Linear(width, count), count

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        sizes = tokens.new_zeros(len(tokens), self.count).scatter(1, chosen[:, None], 1).sum(0).long().tolist()
        return chosen.argsort(stable=True), weight, sizes


class Sorted(nn.Module):
    """The numbers are made in one module, and used in another."""

    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.router, self.parts = Router(width, count), Parts(width, count)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        order, weight, sizes = self.router(tokens)
        out: Tensor = self.parts(tokens[order], sizes)[order.argsort()] * weight[:, None]
        return out.reshape(x.shape)


class Packed(nn.Module):
    """An LSTM over sequences of the lengths that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Watched(nn.Module):
    """A batch norm that looks at what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.detach().abs().max()) > 1e9 else self.norm(x)


class Around(nn.Module):
    """``part`` between layers that can be planned."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.part = part
        self.after = nn.Sequential(nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        out: Tensor = self.after(self.part(self.before(x), *others))
        return out


def tokens(seed: int) -> tuple[Tensor, ...]:
    return (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(seed)),)


def rows(seed: int) -> tuple[Tensor, ...]:
    return (torch.randn(32, 8, generator=torch.Generator().manual_seed(seed)),)


def sequences(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 10, 8, generator=generator), torch.randint(1, 11, (4,), generator=generator)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]]]] = {
    "experts": (Experts, tokens), "two of a class": (lambda: nn.Sequential(Experts(), nn.Tanh(), Experts()), tokens),
    "packed": (Packed, sequences), "batch norm": (Watched, rows), "numbers": (Sorted, tokens),
}  # fmt: skip


def made(name: str) -> tuple[nn.Module, Callable[[int], tuple[Tensor, ...]]]:
    part, inputs = CASES[name]
    torch.manual_seed(0)
    return Around(part()), inputs


def results(model: nn.Module, module: nn.Module, args: tuple[Tensor, ...], seed: int) -> list[Tensor | None]:
    """All that a step leaves, the generator's next number included."""
    model.zero_grad()
    torch.manual_seed(seed)
    out = module(*args)
    out.square().mean().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return [out.detach(), *gradients, *(buffer.clone() for buffer in model.buffers()), torch.rand(3)]


def same(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    return len(found) == len(expected) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(found, expected, strict=True)
    )


def islands_of(plan: Plan, kind: str) -> list[str]:
    return [step.node for step in plan.steps if step.kind == kind and "island" in step.node]


@pytest.mark.parametrize("name", slow_but(["two of a class", "packed"], CASES))
def test_steps_are_eagers(name: str) -> None:
    model, inputs = made(name)
    eager = copy.deepcopy(model)
    plan = monet.plan(model, inputs(0), budget="100%", **HASTE)
    assert islands_of(plan, "forward") and islands_of(plan, "backward") and plan.fixed["islands"] > 0
    planned = monet.MonetModule(model, plan)
    for seed in range(4):
        assert same(results(model, planned, inputs(seed), seed), results(eager, eager, inputs(seed), seed)), seed


@pytest.mark.slow
def test_an_expert_without_tokens_has_no_gradient() -> None:
    """An optimiser would use one of zeros: momentum, weight decay."""
    model, _ = made("experts")
    few = tokens(0)[0][:1, :1]
    planned = monet.MonetModule(model, monet.plan(model, (few,), budget="100%", **HASTE))
    eager = copy.deepcopy(model)
    expected = results(eager, eager, (few,), 0)
    assert sum(gradient is None for gradient in expected) == 12  # three experts of four tensors
    assert same(results(model, planned, (few,), 0), expected)


def test_the_measured_peak_is_the_promised_one(caplog: pytest.LogCaptureFixture) -> None:
    """For values that send as many tokens to each expert; for others it is said."""
    torch.manual_seed(0)
    model = Around(Experts(drop=0.0))
    model.before = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    one_expert = torch.ones(3, 5, 8)
    plan = monet.plan(model, one_expert, budget="100%", **HASTE)
    caplog.clear()
    assert measured_peak_bytes(model, plan, lambda seed: ((torch.ones(3, 5, 8),), {})) == plan.peak_bytes
    assert not caplog.records
    monet.MonetModule(model, plan)(*tokens(0)).sum().backward()
    assert "more than the plan counts: the peak may be above the promise" in caplog.text


class BothSigns(nn.Module):
    """A wide part for the rows that begin above 0, called on its input and on minus that."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 16)
        self.part = Positive()

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x).tanh()
        sign = x[:, :1]
        return self.part(y * sign) + self.part(-y * sign)  # type: ignore[no-any-return]


class Positive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 1024), nn.Linear(1024, 16)

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x[:, 0] > 0).nonzero()[:, 0]
        out: Tensor = torch.zeros_like(x).index_add(0, chosen, self.down(self.up(x[chosen]).relu()))
        return out


def test_a_part_that_is_called_twice_is_counted_with_what_each_call_is_given(caplog: pytest.LogCaptureFixture) -> None:
    """The second call has all rows, the first one none."""
    torch.manual_seed(0)
    model = BothSigns()
    with torch.no_grad():
        model.before.weight.zero_()
        model.before.bias.fill_(1.0)
    rows = -torch.ones(64, 8)
    plan = monet.plan(model, rows, budget="100%", **HASTE)
    caplog.clear()
    measured = measured_peak_bytes(model, plan, lambda seed: ((rows.clone(),), {}))
    assert plan.peak_bytes - plan.fixed["output_gradients"] <= measured <= plan.peak_bytes
    assert not caplog.records


def test_the_peak_of_a_packed_sequence() -> None:
    model, inputs = made("packed")
    plan = monet.plan(model, inputs(0), budget="100%", **HASTE)
    measured = measured_peak_bytes(model, plan, lambda seed: (inputs(0), {}))
    # An island may hold the most in the forward pass, when the outputs' gradients are not there yet.
    assert plan.peak_bytes - plan.fixed["output_gradients"] <= measured <= plan.peak_bytes


class Reader(nn.Module):
    """An LSTM, as a step is planned around one. ``frozen``: its own features, without gradients."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.cells, self.scores = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)
        self.frozen = frozen

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.frozen):
            states = self.cells(x)[0]
        scores: Tensor = self.scores(states)
        return scores


def test_the_peak_of_an_lstm_has_what_it_copies() -> None:
    """The gradient comes in other strides than the result's."""
    model = Reader()
    plan = monet.plan(model, torch.randn(64, 50, 8), budget="100%", **HASTE)
    measured = measured_peak_bytes(model, plan, lambda seed: ((torch.randn(64, 50, 8),), {}))
    assert plan.peak_bytes - plan.fixed["output_gradients"] <= measured <= plan.peak_bytes


def test_an_island_without_gradients_records_nothing() -> None:
    torch.manual_seed(0)
    model = Reader(frozen=True)
    eager = copy.deepcopy(model)
    x = torch.randn(16, 50, 8)
    plan = monet.plan(model, x, budget="100%", **HASTE)
    recorded = monet.plan(Reader(), x, budget="100%", **HASTE)
    assert plan.fixed["islands"] < recorded.fixed["islands"] / 2
    planned = monet.MonetModule(model, plan)
    for seed in range(2):
        given = (torch.randn(16, 50, 8, generator=torch.Generator().manual_seed(seed)),)
        for one, other in zip(results(model, planned, given, 1), results(eager, eager, given, 1), strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)  # type: ignore[arg-type]


def test_weights_that_are_made_elsewhere_are_no_islands() -> None:
    """Weight norm as it was, and weight dropout: planned step by step."""
    normed = Reader()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(normed.cells, "weight_hh_l0")
    assert not capture(normed, (torch.randn(3, 4, 8, requires_grad=True),)).islands
    dropped = Reader()
    dropped.cells.register_parameter("raw", dropped.cells._parameters.pop("weight_hh_l0"))
    with pytest.raises((CaptureError, AttributeError)) as refused:
        capture(dropped, (torch.randn(3, 4, 8),))
    assert isinstance(refused.value, CaptureError)


@pytest.mark.slow
def test_an_island_is_tried_again_for_parameters_that_are_frozen() -> None:
    table = nn.Embedding(50, 16)

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, words: Tensor) -> Tensor:
            out: Tensor = self.table(words) if int(words.max()) < 100 else words
            return out

    torch.manual_seed(0)
    model = nn.Sequential(Looking(), nn.Linear(16, 4))
    words = torch.randint(50, (3, 5))
    for wanted in (False, True):
        model[0].requires_grad_(wanted)
        module = monet.MonetModule(model, monet.plan(model, words, budget="100%", **HASTE))
        model.zero_grad()
        module(words).sum().backward()
        assert (table.weight.grad is not None) is wanted


@pytest.mark.slow
def test_a_packed_sequence_is_planned_from_a_file(tmp_path: Path) -> None:
    """A length is one at least, whoever makes it up."""
    model, inputs = made("packed")
    other, eager = copy.deepcopy(model), copy.deepcopy(model)
    monet.plan(model, inputs(0), budget="100%", **HASTE).save(tmp_path / "plan.json")
    module = monet.MonetModule(other, Plan.load(tmp_path / "plan.json"))
    for one, ours in zip(results(other, module, inputs(1), 1), results(eager, eager, inputs(1), 1), strict=True):
        assert one is not None and ours is not None and torch.equal(one, ours)


class Caching(nn.Module):
    """As decoders of transformers: it is configured to return what only generating needs."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.layer(x) if float(x.detach().abs().max()) < 1e9 else x
        return {"out": out, **({"cache": out.detach()} if self.config.use_cache else {})}


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = Caching()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(x)["out"]
        return out


@pytest.mark.slow
def test_an_island_makes_no_cache_of_keys() -> None:
    model = Around(First())
    eager = copy.deepcopy(model)
    module = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    for one, other in zip(results(model, module, rows(1), 1), results(eager, eager, rows(1), 1), strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
    assert next(part.config.use_cache for part in model.modules() if isinstance(part, Caching)) is True


@pytest.mark.slow
def test_an_island_runs_once_in_the_plan_of_least_memory() -> None:
    """Its buffers see each batch once."""
    torch.manual_seed(0)
    parts = [Watched() for _ in range(6)]
    model = nn.Sequential(
        nn.Linear(8, 16), *(layer for part in parts for layer in (part, nn.Linear(16, 16), nn.Tanh()))
    )
    eager = copy.deepcopy(model)
    x = torch.randn(512, 8)
    with pytest.raises(InfeasibleBudget) as refused:
        monet.plan(model, x, budget="1KB", **HASTE)
    plan = monet.plan(model, x, budget=refused.value.smallest_bytes or 0, **HASTE)
    assert any(step.kind == "recompute" for step in plan.steps) and not islands_of(plan, "recompute")
    planned = monet.MonetModule(model, plan)
    assert same(results(model, planned, (x,), 1), results(eager, eager, (x,), 1))


@pytest.mark.slow
def test_two_plans_of_one_model_wait_for_their_backward_passes() -> None:
    model, inputs = made("experts")
    eager = copy.deepcopy(model)
    plan = monet.plan(model, inputs(0), budget="100%", **HASTE)
    for modules in ((eager, eager), (monet.MonetModule(model, plan), monet.MonetModule(model, plan))):
        torch.manual_seed(1)
        outputs = [module(*inputs(seed)) for seed, module in enumerate(modules)]
        for out in outputs:
            out.square().mean().backward()
    assert any(p.grad is not None for p in model.get_submodule("part").parameters())
    assert same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


def by_value(x: Tensor, least: float = -100.0) -> bool:
    return float(x.detach().max()) > least


class Averages(nn.Module):
    """Divides by a buffer that it changes before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("mean", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        mean.mul_(0.9).add_(0.1 * x.detach().abs().mean())
        out: Tensor = self.linear(x / mean) if by_value(x) else x
        return out


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) if by_value(x) else x
        return out


class DropsLater(nn.Module):
    """Draws random numbers for large values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), 0.5) if by_value(x, 100.0) else x * self.linear.weight[0]


class Chosen(nn.Module):
    """One of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers[int(float(x.detach().mean()) > 0)](x)
        return out


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.chosen = Chosen()

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.chosen(x.cos()), self.chosen(-x.cos()) + self.chosen(x.cos().neg()))


class TiedOutside(nn.Module):
    """A part that uses a layer of its neighbour's."""

    class Part(nn.Module):
        def __init__(self, other: nn.Module) -> None:
            super().__init__()
            self.others = [other]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.others[0](x) if by_value(x) else x
            return out

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.part = self.Part(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.part(self.linear(x).tanh()))


class ChangedLater(nn.Module):
    """Gives a view of what it is given, which its caller changes."""

    class View(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(-1, 16) if by_value(x) else x

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(16, 16), self.View()

    def forward(self, x: Tensor) -> Tensor:
        before = self.linear(x)
        after = self.part(before)
        after.add_(1)
        return torch.mul(after, before)


@pytest.mark.parametrize(
    "part", slow_but([Averages], [Averages, Spectral, DropsLater, Twice, TiedOutside, ChangedLater])
)
def test_what_a_part_leaves_behind_is_there_once(part: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Around(part())
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    for seed, scale in enumerate((1.0, 1.0, 1e4, 1.0)):
        args = (rows(seed)[0] * scale,)
        assert same(results(model, planned, args, seed), results(eager, eager, args, seed)), seed


@pytest.mark.slow
def test_what_leads_to_an_unused_argument_alone_has_no_gradient() -> None:
    class Pick(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * 2 if float(y.detach().mean()) > 0 else y * 2

    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.pick = nn.Linear(8, 8), nn.Linear(8, 8), Pick()

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.pick(torch.relu(self.a(x)), self.b(x).exp() * x.mean().sign()))

    torch.manual_seed(0)
    model = Picks()
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    used = set()
    for seed in range(6):
        expected = results(eager, eager, rows(seed), seed)
        used.add(tuple(gradient is None for gradient in expected))
        assert same(results(model, planned, rows(seed), seed), expected)
    assert len(used) == 2


@pytest.mark.slow
def test_hooks_of_an_islands_parameters_are_called_once() -> None:
    model, inputs = made("experts")
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, inputs(0), budget="100%", **HASTE))
    calls: list[Tensor] = []

    def doubled(gradient: Tensor) -> Tensor:
        calls.append(gradient)
        return gradient * 2

    for of in (model, eager):
        of.get_parameter("part.gate.weight").register_hook(doubled)
    assert same(results(model, planned, inputs(0), 1), results(eager, eager, inputs(0), 1))
    assert len(calls) == 2


@pytest.mark.slow
def test_a_derivative_that_was_not_there_is_an_error_of_the_step() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(x) if by_value(x, 100.0) else x.detach() * 2
            return out

    torch.manual_seed(0)
    model = Around(Sometimes())
    planned = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    planned(*rows(0)).sum().backward()
    with pytest.raises(ExecutionError, match="returned a tensor that had no derivative when it was planned"):
        planned(rows(0)[0] * 1e4)


def test_monet_apply_trains_with_islands(caplog: pytest.LogCaptureFixture) -> None:
    model, inputs = made("experts")
    eager = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        monet.apply(model, budget="100MB", exact=True, time_limit_s=2, cores=1)
        found = results(model, model, inputs(0), 3)
    assert same(found, results(eager, eager, inputs(0), 3))
    assert "part of Around (1 in all) runs as it is inside of the plan" in caplog.text
    assert "1 by a plan, 0 without one" in str(monet.applied(model))


@pytest.mark.slow
def test_a_measured_step_is_planned_in_another_process(tmp_path: Path) -> None:
    """The file has what islands hold; the process does not know them."""
    model, inputs = made("experts")
    prepared = prepare(model, inputs(0), {})
    write_step(prepared, Offering(), tmp_path / "step.json")
    code = (
        "import sys; from pathlib import Path; from monet.pipeline.measured_step import read_step; "
        "print(read_step(Path(sys.argv[1])).lowered.fixed['islands'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "step.json")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) == prepared.lowered.fixed["islands"] > 0


class Nonzero(nn.Module):
    """Its result has as many rows as there are positive numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


class Counted(nn.Module):
    """Returns a number of values, for its caller."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x * 2, int((x > 0).sum())


class UsesCount(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counted = Counted()

    def forward(self, x: Tensor) -> Tensor:
        doubled, count = self.counted(x)
        return torch.div(doubled, count)


class Keeps(nn.Module):
    """Changes itself in each call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls if float(x.detach().sum()) < 1e9 else x


class Shapes(nn.Module):
    """As many columns as the lengths say."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, : int(lengths.max())].sum(-1, keepdim=True).mean(1, keepdim=True) + x[:, : int(lengths.max())]


@pytest.mark.parametrize("part", [Nonzero, Keeps])
def test_what_leaves_more_behind_or_has_no_shape_is_refused(part: type[nn.Module]) -> None:
    """With the reason of the first trace."""
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="depends on the values of tensors"):
        monet.plan(Around(part()), rows(0), budget="100%", **HASTE)


@pytest.mark.slow
def test_a_number_of_values_makes_its_reader_the_island() -> None:
    """As a constant of the plan it would be the first batch's."""
    torch.manual_seed(0)
    model = Around(UsesCount())
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    for seed in range(2):
        assert same(results(model, planned, rows(seed), seed), results(eager, eager, rows(seed), seed))


def test_another_shape_than_planned_is_an_error_of_the_step() -> None:
    torch.manual_seed(0)
    model = Around(Shapes())
    x = sequences(0)[0]
    planned = monet.MonetModule(model, monet.plan(model, (x, torch.tensor([4, 2, 4, 1])), budget="100%", **HASTE))
    planned(x, torch.tensor([1, 4, 3, 2]))
    with pytest.raises(ExecutionError, match=r"part, which runs as it is .* \[4, 7, 16\], and the plan is for .*4, 16"):
        planned(x, torch.tensor([1, 4, 7, 2]))


def test_what_is_wrong_with_the_model_itself_is_said() -> None:
    torch.manual_seed(0)
    with pytest.raises(CaptureError, match="the model fails on such inputs, planned or not"):
        monet.plan(Around(Experts(width=12)), tokens(0), budget="100%", **HASTE)


@pytest.mark.slow
def test_another_shape_and_another_precision_are_tried_anew() -> None:
    """What is known of a part is of the situation in which it was tried."""
    model, _ = made("experts")
    eager = copy.deepcopy(model)
    for x, dtype in (
        (torch.randn(3, 5, 8), None),
        (torch.randn(2, 9, 8), None),
        (torch.randn(3, 5, 8), torch.bfloat16),
    ):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            planned = monet.MonetModule(model, monet.plan(model, (x,), budget="100%", **HASTE))
            found, expected = (results(*pair, (x,), 1) for pair in ((model, planned), (eager, eager)))
        assert same(found, expected)


class Gate(nn.Module):
    """Numbers without a derivative, by a look at values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Linear(8, 16)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.weight(x).sigmoid() if float(x.sum()) < 1e9 else x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.linear = Gate(), nn.Linear(8, 16)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mul(self.linear(x), self.gate(x * self.scale))


@pytest.mark.slow
def test_results_without_a_derivative_have_none() -> None:
    """What leads to them alone has no gradient, as in eager."""
    torch.manual_seed(0)
    model = Gated()
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, rows(0), budget="100%", **HASTE))
    found = results(model, planned, rows(1), 1)
    assert same(found, results(eager, eager, rows(1), 1))
    assert sum(gradient is None for gradient in found) == 3


def test_models_without_such_parts_have_no_islands() -> None:
    x = torch.randn(4, 8)
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    captured: Captured = capture(model, (x,))
    assert not captured.islands and captured.island_bytes == 0


class Elsewhere(nn.Module):
    """A size of values, which only the next part cannot be traced with."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 0, int(x.detach().mean() * 0)))


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() if x.shape[0] > 3 else x


def test_the_part_that_made_the_size_is_left_out_and_not_the_one_that_met_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Elsewhere(), Square(), nn.Linear(16, 2))
    captured = capture(model, rows(0))
    assert [island.name for island in captured.islands.values()] == ["1"]


def test_a_hook_that_cannot_be_traced_makes_no_island_of_what_is_around_it() -> None:
    """As ``enable_input_require_grads`` of transformers: for one shape it can be, and all of the model is planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8)), nn.Linear(8, 4))
    model[0][0].register_forward_hook(lambda part, args, output: output.requires_grad_(True))  # type: ignore[index]
    words = {"input": torch.randint(10, (4, 6))}
    with pytest.raises(CaptureError, match=r"plan each shape: .* a hook of 0\.0, cannot be traced"):
        monet.plan(model, words, budget="100%", dynamic={"input": {0: torch.export.Dim("batch", max=4)}}, **HASTE)
    assert "islands" not in monet.plan(model, words, budget="100%", **HASTE).fixed


def test_an_error_that_an_island_would_meet_too_names_no_part() -> None:
    model = Around(Experts())
    error = CaptureError("the forward pass draws random numbers of Python or NumPy, and it cannot be traced")
    assert modules_to_leave(model, (tokens(0), {}), error) == []
