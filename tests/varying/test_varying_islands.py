"""Parts that run as they are in a plan for every shape up to one: recurrent layers, and what cannot be traced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_reference import assert_same_gradients
from small_models import tokens
from torch import Tensor, nn
from torch.export import Dim

import monet
from monet.capture import capture
from monet.capture.islands.result_sizes import SizeRule, result_rules
from monet.errors import CaptureError
from monet.native import allocator
from monet.pipeline.carried_state import state_choices
from monet.pipeline.offloading import offloaded
from monet.pipeline.preparation import prepare_whole
from monet.plans.plan import Plan
from monet.step.second_memory.offload import parse_offload
from monet.step.training_step.whole_step import capture_whole_step

pytestmark = pytest.mark.usefixtures("hasty_orders")

AXES = [Dim("batch", min=2, max=6), Dim("length", min=2, max=24)]
SHAPES = [(6, 24), (2, 7), (3, 2), (5, 23)]
HASTE: dict[str, Any] = {"time_limit_s": 2, "cores": 1}


class Reader(nn.Module):
    """Words to scores of ten tags."""

    def __init__(self, layer: Callable[..., nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.cells = layer(16, 16, batch_first=True, **options)
        width = 32 if options.get("bidirectional") else 16
        self.scores = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 10))

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.cells(self.embedding(words))[0])
        return scores


class Sent(nn.Module):
    """Each token by one of two layers, as its values say."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.experts = nn.Embedding(100, 16), Experts()
        self.scores = nn.Linear(16, 10)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.experts(self.embedding(words)).tanh())
        return scores


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        out = torch.zeros_like(flat)
        for number, layer in enumerate(self.layers):
            mine = ((flat[:, 0] > 0) == bool(number)).nonzero()[:, 0]
            if len(mine):
                out = out.index_add(0, mine, layer(flat[mine]))
        return out.view_as(x)


CASES: dict[str, Any] = {
    "lstm": lambda: Reader(nn.LSTM, num_layers=2, dropout=0.2, bidirectional=True), "gru": lambda: Reader(nn.GRU),
    "experts": Sent,
}  # fmt: skip


def made(case: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = CASES[case]()
    return model


def assert_steps_are_eagers(planned: nn.Module, model: nn.Module, eager: nn.Module, shapes: Any) -> None:
    for seed, shape in enumerate(shapes):
        words = tokens(shape, seed)
        for of in (model, eager):
            of.zero_grad()
        torch.manual_seed(seed)
        scores = planned(words)
        scores.square().mean().backward()
        torch.manual_seed(seed)
        expected = eager(words)
        expected.square().mean().backward()
        assert torch.equal(scores, expected)
        assert_same_gradients(model, eager)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3)
def test_every_shape_is_eagers_bit_by_bit_and_from_a_file(case: str, tmp_path: Path) -> None:
    model = made(case)
    other, eager = copy.deepcopy(model), copy.deepcopy(model)
    plan = monet.plan(model, tokens((4, 10), 0), budget="100%", dynamic={"words": AXES}, exact=True, **HASTE)
    assert plan.fixed["islands"] > 0 and "dynamic" in plan.model
    assert_steps_are_eagers(monet.MonetModule(model, plan), model, eager, SHAPES)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")  # on inputs that are made up
    assert_steps_are_eagers(monet.MonetModule(other, again), other, eager, SHAPES[:2])


@pytest.mark.skipif(not allocator.available(), reason="peaks are measured by the native allocator")
def test_no_shape_exceeds_the_promise(caplog: pytest.LogCaptureFixture) -> None:
    model = made("lstm")
    plan = monet.plan(model, tokens((6, 24), 0), budget="100%", dynamic={"words": AXES}, **HASTE)
    module = monet.MonetModule(model, plan)
    module(tokens((6, 24), 1)).square().mean().backward()
    held = allocator.live_bytes() - plan.arena_bytes
    caplog.clear()
    for shape in SHAPES:
        words = tokens(shape, 1)
        module.zero_grad(set_to_none=True)
        allocator.reset_peak()
        module(words).square().mean().backward()
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
        outside = plan.fixed["islands"] + gradients + 3 * plan.fixed["outputs"] + words.nbytes
        assert allocator.peak_bytes() <= held + plan.arena_bytes + outside
    assert not caplog.records  # no island held more than the plan counts


@pytest.mark.slow
def test_apply_runs_texts_of_any_length() -> None:
    model = made("lstm")
    eager = copy.deepcopy(model)
    monet.apply(model, budget="20MB", exact=True, progress=False, **HASTE)
    assert_steps_are_eagers(model, model, eager, [(4, 10), (4, 7), (2, 9), (1, 5), (6, 20), (3, 17)])
    applied = monet.applied(model)
    assert applied is not None and (applied.planned_calls, applied.eager_calls) == (6, 0)
    assert len(applied.plans) < 6


def test_whole_steps_have_recurrent_layers() -> None:
    model = made("lstm")
    eager = copy.deepcopy(model)
    step = torch.optim.AdamW(model.parameters(), 0.01), torch.optim.AdamW(eager.parameters(), 0.01)

    def loss_of(scores: Tensor, tags: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten())

    trainer = monet.optimize(
        model, tokens((4, 10), 0), tokens((4, 10), 1) % 10, loss_fn=loss_of, optimizer=step[0], budget="100%",
        exact=True, dynamic={"words": AXES, "targets": AXES}, **HASTE,
    )  # fmt: skip
    for seed, shape in enumerate(SHAPES):
        words, tags = tokens(shape, seed), tokens(shape, seed + 50) % 10
        torch.manual_seed(seed)
        loss, _ = trainer(words, tags)
        torch.manual_seed(seed)
        step[1].zero_grad()
        expected = loss_of(eager(words), tags)
        expected.backward()
        step[1].step()
        assert torch.equal(loss, expected)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), eager.parameters(), strict=True))


@pytest.mark.slow
def test_an_lstm_is_the_kernel_that_eager_runs() -> None:
    """For one shape, too: a trace would unroll it into others, whose roundings differ."""
    model = made("lstm")
    eager = copy.deepcopy(model)
    plan = monet.plan(model, tokens((4, 9), 0), budget="100%", exact=True, **HASTE)
    assert plan.fixed["islands"] > 0
    assert_steps_are_eagers(monet.MonetModule(model, plan), model, eager, [(4, 9)] * 2)
    with torch.backends.mkldnn.flags(enabled=False):  # where eager's own is unrolled, so is the plan's
        unrolled = capture(made("lstm"), (tokens((4, 3), 0),))
        assert not unrolled.islands and len(unrolled.graph.forward) > 100


def test_what_an_island_uses_stays_in_memory() -> None:
    """It takes its module's own parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), Last(), nn.Linear(256, 1024))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = capture_whole_step(
        model, torch.randn(4, 7, 64), torch.randn(4, 1024), loss_fn=nn.functional.mse_loss, optimizer=optimizer
    )
    lowered = offloaded(prepare_whole(step), parse_offload("bandwidth=1GB/s"), cache=False).lowered
    names = {source.value: source.target for source in lowered.catalogue.graph.sources}
    moved = {names[name] for choice in state_choices(lowered) for name in choice.names}
    assert any("2.weight" in name for name in moved) and not any("cells" in name for name in moved)


class Choosing(nn.LSTM):
    """An LSTM that uses one of its parameters or the other."""

    def __init__(self) -> None:
        super().__init__(8, 8, batch_first=True)
        self.one, self.two = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        y: Tensor = super().forward(x)[0]
        return y * self.one if float(x.detach().sum()) > -1e9 else y * self.two


def test_an_update_never_takes_zeros_for_a_gradient_that_is_not_there() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Choosing(), nn.Linear(8, 4))
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(of.parameters(), weight_decay=0.1) for of in (model, eager))
    x, y = torch.randn(4, 5, 8), torch.randn(4, 5, 4)
    step = monet.optimize(model, x, y, loss_fn=nn.functional.mse_loss, optimizer=ours, budget="100%", **HASTE)
    for _ in range(2):
        loss, _ = step(x, y)
        expected = nn.functional.mse_loss(eager(x), y)
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert torch.equal(loss, expected)
        assert all(map(torch.equal, model.parameters(), eager.parameters()))


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1024, 256, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.cells(x)[1][0][0]
        return state


class Halves(nn.Module):
    """Half as many tokens, rounded up, of those that values choose."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        half: Tensor = x[:, ::2] if float(x.detach().sum()) < 1e9 else x[:, 1::2]
        return half


class Even(Halves):
    """As many tokens as make pairs: all of them at the largest shape."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) if float(x.detach().sum()) < 1e9 else x
        return x[:, : x.shape[1] // 2 * 2].clone()


class Four(Halves):
    """Four tokens, or as many as there are."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) if float(x.detach().sum()) < 1e9 else x
        return x[:, :4].clone()


@pytest.mark.parametrize("part", [Halves, Even, Four])
@pytest.mark.slow
def test_sizes_that_no_rule_gives_are_refused(part: type[Halves]) -> None:
    model = nn.Sequential(nn.Embedding(100, 16), part(), nn.Linear(16, 4))
    with pytest.raises(CaptureError, match=r"a range of shapes; plan each shape: .* no product of sizes of its"):
        monet.plan(model, tokens((4, 9), 0), budget="100%", dynamic={"input": AXES}, **HASTE)
    monet.apply(model, budget="20MB", progress=False, **HASTE)
    for length in (24, 16, 9, 3):  # by the model itself where no plan holds
        model(tokens((4, length), 0)).sum().backward()


class Ends(nn.Module):
    """The last token of each text, whose position is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cells = nn.Embedding(100, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, words: Tensor, last: Tensor) -> Tensor:
        states: Tensor = self.cells(self.embedding(words))[0]
        return states[torch.arange(words.shape[0]), last].clone()


def test_positions_of_a_longer_sample_are_none_at_a_shorter_one() -> None:
    torch.manual_seed(0)
    model = Ends()
    eager = copy.deepcopy(model)
    dynamic = {"words": AXES, "last": AXES[:1]}
    sample = tokens((4, 9), 0), torch.tensor([8, 3, 5, 8])
    plan = monet.plan(model, sample, budget="100%", dynamic=dynamic, exact=True, **HASTE)
    module = monet.MonetModule(model, plan)
    for batch, length in SHAPES:
        words, last = tokens((batch, length), 1), torch.arange(batch) % length
        for of, call in ((model, module), (eager, eager)):
            of.zero_grad()
            call(words, last).square().sum().backward()
        assert_same_gradients(model, eager)


def test_an_empty_sample_has_a_range() -> None:
    model = made("gru")
    plan = monet.plan(model, tokens((0, 9), 0), budget="100%", dynamic={"words": AXES}, **HASTE)
    monet.MonetModule(model, plan)(tokens((3, 7), 0)).sum().backward()


def test_rules_of_sizes() -> None:
    floats = torch.float32

    def call(batch: int, length: int, *results: tuple[int, ...]) -> Any:
        return ((floats, (batch, length, 16)),), tuple((floats, shape) for shape in results)

    calls = [
        call(b, n, (b, n, 32), (2, b, 16), (b * n, 3), (4 * n,), (b * n * n,))
        for b, n in ((6, 24), (4, 24), (6, 16), (4, 16))
    ]
    batch, length = ((0, 0),), ((0, 1),)
    assert result_rules("part", calls) == (
        (SizeRule(1, batch), SizeRule(1, length), SizeRule(32, ())),
        (SizeRule(2, ()), SizeRule(1, batch), SizeRule(16, ())),
        (SizeRule(1, batch + length), SizeRule(3, ())),
        (SizeRule(4, length),),
        (SizeRule(1, batch + length + length),),
    )
    with pytest.raises(CaptureError, match="along axis 0 is no product of sizes of its arguments: 25, 25, 17, 17"):
        result_rules("part", [call(b, n, (n + 1,)) for b, n in ((6, 24), (4, 24), (6, 16), (4, 16))])
    with pytest.raises(CaptureError, match="more tensors at some shapes"):
        result_rules("part", [call(6, 24, (6,)), call(4, 24, (4,), (4,))])


def test_gradients_of_recurrent_layers_add_up() -> None:
    model = made("lstm")
    eager = copy.deepcopy(model)
    plan = monet.plan(model, tokens((4, 9), 0), budget="100%", exact=True, accumulate=True, **HASTE)
    planned = monet.MonetModule(model, plan)
    for seed in range(3):
        for of in (planned, eager):
            torch.manual_seed(seed)
            of(tokens((4, 9), seed)).square().mean().backward()
        assert_same_gradients(model, eager)
