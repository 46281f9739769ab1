"""Islands whose gradients are used inside of the step: in weight updates, and in sums of gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from test_islands import HASTE, Around, Experts, same, tokens
from torch import Tensor, nn

import monet
from monet.errors import CaptureError


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of the tokens that are not padding, whose number depends on values."""
    kept = targets >= 0
    return nn.functional.cross_entropy(outputs[kept], targets[kept])


def tagger() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 6))


def texts(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(-3, 6, (4, 5), generator=generator)
    targets[0, 0] = 1
    return torch.randn(4, 5, 8, generator=generator), targets


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features = self.body(x)
        return tuple(head(features) for head in self.heads)


class Speech(nn.Module):
    """A recogniser whose loss is a part of it. ``lengths`` of the target texts depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6))
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        found = self.layers(x).log_softmax(-1).transpose(0, 1)
        loss: Tensor = self.loss(found, targets, torch.full_like(lengths, x.shape[1]), lengths)
        return loss


class ReadOut(nn.Module):
    """The same with the function, in the model's own ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        found = self.layer(x).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(found, targets, torch.full_like(lengths, x.shape[1]), lengths)


def speech(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (3,), generator=generator)
    return torch.randn(3, 12, 8, generator=generator), torch.randint(1, 6, (3, 4), generator=generator), lengths


def stepped(model: nn.Module, step: Any, args: tuple[Tensor, Tensor], seed: int) -> list[Tensor]:
    """Loss and parameters after a step."""
    torch.manual_seed(seed)
    loss = step(*args)
    return [loss.detach().clone(), *(p.detach().clone() for p in model.parameters())]


def by_hand(model: nn.Module, loss_fn: Any, optimizer: torch.optim.Optimizer, clip: float | None) -> Any:
    def step(x: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_fn(model(x), targets)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return step


def pair_of_steps(model: nn.Module, args: tuple[Tensor, Tensor], loss_fn: Any, kind: Any, clip: float | None) -> Any:
    """The planned step, eager's, and eager's model."""
    eager = copy.deepcopy(model)
    trainer = monet.optimize(
        model, *args, loss_fn=loss_fn, optimizer=kind(model.parameters()), budget="100%", clip_grad_norm=clip, **HASTE
    )
    assert trainer.plan.fixed["islands"] > 0
    return lambda *of: trainer(*of)[0], by_hand(eager, loss_fn, kind(eager.parameters()), clip), eager


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """A step that a gradient of zeros would be seen in, and a first step that is unlike the others."""
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.5, weight_decay=0.1)


@pytest.mark.parametrize("clip", slow_but([0.5], [None, 0.5]))
def test_a_whole_steps_loss_may_choose_by_values(clip: float | None) -> None:
    model = tagger()
    planned, by_eager, eager = pair_of_steps(model, texts(0), masked, torch.optim.AdamW, clip)
    for seed in range(4):
        args = texts(seed)
        assert same(stepped(model, planned, args, seed), stepped(eager, by_eager, args, seed)), seed


def test_a_whole_step_for_a_range_of_shapes_has_them() -> None:
    torch.manual_seed(0)
    model = Around(Experts())
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(of.parameters(), lr=0.01) for of in (model, eager))
    batch = torch.export.Dim("batch", max=3)
    trainer = monet.optimize(
        model, tokens(0)[0], torch.zeros(3, 5, 4), loss_fn=nn.functional.mse_loss, optimizer=ours, budget="100%",
        dynamic={"x": {0: batch}, "targets": {0: batch}}, **HASTE,
    )  # fmt: skip
    assert trainer.plan.fixed["islands"] > 0
    by_eager = by_hand(eager, nn.functional.mse_loss, theirs, None)
    for seed, count in enumerate((3, 2, 1, 3)):
        args = tokens(seed)[0][:count], torch.zeros(count, 5, 4)
        found = stepped(model, lambda *of: trainer(*of)[0], args, seed)
        assert same(found, stepped(eager, by_eager, args, seed)), seed


@pytest.mark.parametrize("kind", slow_but([torch.optim.AdamW], [torch.optim.AdamW, momentum]))
def test_experts_without_tokens_are_not_updated(kind: Any) -> None:
    """Their momentum and weight decay wait, too, and their first step is the first one with tokens."""
    torch.manual_seed(0)
    model = Around(Experts())
    few = tokens(0)[0][:1, :1], torch.zeros(1, 1, 4)
    planned, by_eager, eager = pair_of_steps(model, few, nn.functional.mse_loss, kind, None)
    updated = set[int]()
    for seed in range(12):
        before = [p.detach().clone() for p in model.parameters()]
        args = tokens(seed)[0][:1, :1], torch.zeros(1, 1, 4)
        assert same(stepped(model, planned, args, seed), stepped(eager, by_eager, args, seed)), seed
        now = [i for i, (a, b) in enumerate(zip(before, model.parameters(), strict=True)) if not torch.equal(a, b)]
        assert len(now) < len(before)
        updated.update(now)
    assert len(updated) > len(now)  # one expert after the other


def test_experts_without_tokens_and_a_clipped_norm() -> None:
    """To rounding: the norm is a sum with zeros in it."""
    torch.manual_seed(0)
    model = Around(Experts())
    few = tokens(0)[0][:1, :1], torch.zeros(1, 1, 4)
    planned, by_eager, eager = pair_of_steps(model, few, nn.functional.mse_loss, momentum, 0.1)
    for seed in range(4):
        args = tokens(seed)[0][:1, :1], torch.zeros(1, 1, 4)
        found, expected = stepped(model, planned, args, seed), stepped(eager, by_eager, args, seed)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_a_head_that_the_loss_leaves_out_is_not_updated() -> None:
    """Weight decay and momentum would update it, with gradients of zeros."""

    def of_one(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
        return outputs[int(targets.max() > 0)].square().mean()

    torch.manual_seed(0)
    model = Heads()
    x, targets = torch.randn(4, 8), torch.ones(4)
    planned, by_eager, eager = pair_of_steps(model, (x, targets), of_one, momentum, None)
    weights = [p for name, p in model.named_parameters() if name in ("heads.0.weight", "heads.1.weight")]
    for seed, chosen in enumerate((targets, -targets, -targets, targets)):
        before = [weight.detach().clone() for weight in weights]
        assert same(stepped(model, planned, (x, chosen), seed), stepped(eager, by_eager, (x, chosen), seed)), seed
        kept = [torch.equal(a, weight) for a, weight in zip(before, weights, strict=True)]
        assert kept == [seed in (0, 3), seed in (1, 2)]


class Chosen(nn.Module):
    """One of two tensors, by values, through a root of what is 0 in the other: its derivative is infinite there."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.last = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.choice = Choice()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        z = y * self.gate(x).square().sum(-1, keepdim=True).sqrt()
        out: Tensor = self.last(self.choice(z, y))
        return out


class Choice(nn.Module):
    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return z if float(y.detach().sum()) > 1e9 else y + 1


@pytest.mark.parametrize("clip", [None, 100.0])
def test_what_is_left_out_does_not_spoil_what_it_is_added_to(clip: float | None) -> None:
    """Zeros that stand for no gradient, times infinity, are NaN."""
    torch.manual_seed(0)
    model = Chosen()
    x = torch.randn(3, 8)
    x[0] = 0
    args = x, torch.randn(3, 8)
    planned, by_eager, eager = pair_of_steps(model, args, nn.functional.mse_loss, momentum, clip)
    for seed in range(3):
        assert same(stepped(model, planned, args, seed), stepped(eager, by_eager, args, seed)), seed


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.sampled(2)
def test_a_result_that_the_loss_leaves_out_has_no_gradient_inside_of_an_island(accumulate: bool) -> None:
    class Watching(Heads):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return super().forward(x * 2 if float(x.detach().max()) > 1e9 else x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Watching())
    eager, x = copy.deepcopy(model), torch.randn(4, 8)
    planned = monet.MonetModule(model, monet.plan(model, x, budget="100%", accumulate=accumulate, **HASTE))
    for head in (0, 1, 0):
        for of, called in ((model, planned), (eager, eager)):
            of.zero_grad()
            called(x)[head].square().mean().backward()
        assert same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


def test_state_is_made_with_the_first_gradient() -> None:
    """A first step with momentum takes the gradient without dampening, also after a state was saved and loaded."""
    torch.manual_seed(0)
    model, args = Heads(), (torch.randn(4, 8), torch.ones(4))

    def of_one(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
        return outputs[int(targets.max() > 0)].square().mean()

    eager = copy.deepcopy(model)
    ours, theirs = momentum(model.parameters()), momentum(eager.parameters())
    trainer = monet.optimize(model, *args, loss_fn=of_one, optimizer=ours, budget="100%", **HASTE)
    by_eager = by_hand(eager, of_one, theirs, None)
    for targets in (args[1], -args[1], args[1]):
        found = stepped(model, lambda *of: trainer(*of)[0], (args[0], targets), 0)
        assert same(found, stepped(eager, by_eager, (args[0], targets), 0))
        assert ours.state_dict()["state"].keys() == theirs.state_dict()["state"].keys()
        ours.load_state_dict(copy.deepcopy(ours.state_dict()))


@pytest.mark.slow
def test_a_first_gradient_that_comes_late_is_the_first_of_a_state_in_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 520), nn.Tanh(), Experts(520), *(nn.Linear(520, 520) for _ in range(3)))
    model.append(nn.Linear(520, 4))
    eager = copy.deepcopy(model)
    ours, theirs = momentum(model.parameters()), momentum(eager.parameters())
    args = torch.randn(1, 2, 8), torch.zeros(1, 2, 4)
    trainer = monet.optimize(
        model, *args, loss_fn=nn.functional.mse_loss, optimizer=ours, budget="80%",
        offload=f"disk:{tmp_path},write=1GB/s,read=1GB/s", checkpoint=tmp_path / "training.monet", **HASTE,
    )  # fmt: skip
    assert trainer.plan.second_bytes > 0
    by_eager = by_hand(eager, nn.functional.mse_loss, theirs, None)
    for seed in range(6):
        args = torch.randn(1, 2, 8, generator=torch.Generator().manual_seed(seed)), args[1]
        found = stepped(model, lambda *of: trainer(*of)[0], args, seed)
        assert same(found, stepped(eager, by_eager, args, seed)), seed


def test_an_island_that_reads_another_parts_weight_is_none_of_a_whole_step() -> None:
    class Peeking(nn.Module):
        def __init__(self, other: nn.Linear) -> None:
            super().__init__()
            self.layer, self.others = nn.Linear(8, 8), [other]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x) + self.others[0].weight.detach().sum()
            return out * 2 if float(x.detach().max()) > 1e9 else out

    torch.manual_seed(0)
    last = nn.Linear(8, 4)
    model = nn.Sequential(nn.Linear(8, 8), Peeking(last), last)
    x, y = torch.randn(4, 8), torch.randn(4, 4)
    with pytest.raises(CaptureError, match=r"reads model\.2\.weight, a parameter of another part"):
        pair_of_steps(model, (x, y), nn.functional.mse_loss, momentum, None)


def test_an_island_does_not_read_what_the_step_assigns() -> None:
    """That is assigned when a planned step has ended."""

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.real: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.real = x[..., 0] > 0
            out: Tensor = self.layer(x)
            return out

    model = Noting()
    args = torch.randn(6, 8), torch.randn(6, 4)

    def of_real(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs[model.real], targets[model.real])

    with pytest.raises(CaptureError, match="depends on the values of tensors"):
        pair_of_steps(model, args, of_real, momentum, None)


@pytest.mark.slow
def test_a_sum_of_gradients_has_none_of_experts_without_tokens() -> None:
    torch.manual_seed(0)
    model = Around(Experts())
    eager = copy.deepcopy(model)
    few = [tokens(seed)[0][:1, :1] for seed in range(3)]
    planned = monet.MonetModule(model, monet.plan(model, (few[0],), budget="100%", accumulate=True, **HASTE))
    for count in (1, 3):
        for of in (model, eager):
            of.zero_grad()
        for seed, x in enumerate(few[:count]):
            for called in (planned, eager):
                torch.manual_seed(seed)
                called(x).square().mean().backward()
        assert any(p.grad is None for p in eager.parameters())
        assert same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()]), count


@pytest.mark.slow
def test_a_part_that_is_a_ctc_loss() -> None:
    torch.manual_seed(0)
    model = Speech()
    eager = copy.deepcopy(model)
    plans = [monet.plan(model, speech(0), budget="100%", accumulate=many, **HASTE) for many in (False, True)]
    for plan in plans:
        planned = monet.MonetModule(model, plan)
        for of in (model, eager):
            of.zero_grad()
        for seed in range(3):
            losses = [of(*speech(seed)) for of in (planned, eager)]
            for loss in losses:
                loss.backward()
            assert same([losses[0]], [losses[1]])
        assert same([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])


def test_a_ctc_loss_in_the_models_own_forward_is_refused_with_what_to_do() -> None:
    with pytest.raises(CaptureError, match=r"make it a part of the model \(torch.nn.CTCLoss\)"):
        monet.plan(ReadOut(), speech(0), budget="100%", **HASTE)


def test_a_table_with_sparse_gradients_is_none_of_a_sum() -> None:
    """It was found for a plan of the same model, which hands sparse gradients over."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4))
    numbers = torch.randint(10, (3,))
    assert "islands" in monet.plan(model, numbers, budget="100%", **HASTE).fixed
    with pytest.raises(CaptureError, match="whose memory depends on the values in it"):
        monet.plan(model, numbers, budget="100%", accumulate=True, **HASTE)
