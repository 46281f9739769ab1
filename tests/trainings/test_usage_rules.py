"""What a training loop may do around a planned step, and what it is told when it does something else."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_reference import assert_same_gradients
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from usage_cases import HALF, USAGES, Several, tiny_gpt2

import monet
from monet.base.graph import PARAMETER, Operator, references
from monet.capture import Captured, capture
from monet.errors import CaptureError, ConfigError, ExecutionError, PlanMismatch
from monet.lab.experiments.measured_steps import measure_config
from monet.models.config import Config, InputSpec
from monet.models.model_loading import build_model
from monet.models.model_loading import precision as precision_of
from monet.models.sample_inputs import make_inputs
from monet.ops.families.convolution.onednn import onednn_takes
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Preparing, prepare
from monet.planner.search import Solving


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def _rows(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def _planned(model: nn.Module, **options: Any) -> monet.MonetModule:
    return monet.MonetModule(model, monet.plan(model, (_rows(),), budget="1GB", exact=True, **options))


def _bfloat16(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=HALF, **options)


@pytest.fixture(scope="module")
def autocast_plan() -> monet.Plan:
    with _bfloat16():
        return monet.plan(_net(), (_rows(),), budget="1GB", exact=True)


# Autocast.


def test_a_step_is_called_in_the_precision_of_its_plan(autocast_plan: monet.Plan) -> None:
    assert autocast_plan.model["autocast"] == {"dtype": "bfloat16", "cache": True}
    planned = monet.MonetModule(_net(), autocast_plan)  # made outside of the context
    with pytest.raises(PlanMismatch, match="autocast is off, and the plan was made with autocast on with bfloat16"):
        planned(_rows())
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(PlanMismatch, match="on with float16"):
        planned(_rows())
    with _bfloat16(cache_enabled=False), pytest.raises(PlanMismatch, match="without a cache"):
        planned(_rows())
    with _bfloat16(), torch.autocast("cpu", enabled=False), pytest.raises(PlanMismatch, match="is off"):
        planned(_rows())
    with _bfloat16():
        assert planned(_rows()).dtype is HALF
    plain = _planned(_net())
    assert "autocast" not in plain.plan.model
    with _bfloat16(), pytest.raises(PlanMismatch, match="on with bfloat16, and the plan was made with autocast off"):
        plain(_rows())


class _TwoRegions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with _bfloat16():
            x = self.layer(x)
        with _bfloat16():
            out: Tensor = self.layer(torch.tanh(x)).float()
            return out


def test_casts_that_a_context_around_would_keep_are_refused() -> None:
    """Autocast that is off, in a context around: eager then casts a weight once for all that are inside."""
    model, x = _TwoRegions(), torch.randn(16, 8)
    planned = monet.MonetModule(model, monet.plan(model, (x,), budget="1GB", exact=True, time_limit_s=1))
    planned(x).sum().backward()
    own = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(own, model.parameters(), strict=True))  # type: ignore[arg-type]
    with torch.autocast("cpu", enabled=False):
        with pytest.raises(PlanMismatch, match=r"enabled=False\) is around the call, in which eager casts layer\."):
            planned(x)
        with pytest.raises(CaptureError, match="call the model outside of that context"):
            monet.plan(model, (x,), budget="1GB")


def test_a_step_made_under_another_autocast_is_the_plans(autocast_plan: monet.Plan) -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        planned = monet.MonetModule(_net(), autocast_plan)
    plan = monet.plan(_net(), (_rows(),), budget="1GB", exact=True)
    with _bfloat16():
        plain = monet.MonetModule(_net(), plan)
        assert planned(_rows()).dtype is HALF
    assert plain(_rows()).dtype is torch.float32


def test_backward_may_also_be_called_inside(autocast_plan: monet.Plan) -> None:
    """Its casts are the plan's: as eager's outside, where PyTorch wants it."""
    planned, eager = monet.MonetModule(_net(), autocast_plan), _net()
    with _bfloat16():
        planned(_rows()).float().square().sum().backward()
        out = eager(_rows())
    out.float().square().sum().backward()
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_evaluation_is_in_the_callers_precision(autocast_plan: monet.Plan) -> None:
    planned, eager = monet.MonetModule(_net(), autocast_plan), _net()
    with _bfloat16(), torch.no_grad():
        assert torch.equal(planned(_rows(2)), eager(_rows(2)))
    planned.eval()
    assert torch.equal(planned(_rows(2)), eager(_rows(2)))


def test_trainers_say_the_same(autocast_plan: monet.Plan) -> None:
    model = _net()
    arguments: dict[str, Any] = {
        "loss_fn": lambda out, _: out.float().square().mean(),
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
    }
    with _bfloat16():
        trainer = monet.optimize(model, _rows(), **arguments, budget="1GB", exact=True)
        trainer(_rows())
    with pytest.raises(PlanMismatch, match="autocast is off"):
        trainer(_rows())
    with pytest.raises(PlanMismatch, match="autocast is off, and the plan was made with autocast on"):
        monet.optimize(model, _rows(), **arguments, plan=trainer.plan)
    with pytest.raises(ConfigError, match="requires a gradient"):
        monet.optimize(model, _rows().requires_grad_(), **arguments, budget="1GB")


# Gradients.


def test_what_leads_only_to_unused_outputs_has_no_gradient() -> None:
    """None as in eager: weight decay and momentum would move a parameter whose gradient is zeros."""
    usage = USAGES["several outputs"]
    args, kwargs = usage.inputs(0)
    model = usage.model()
    planned = monet.MonetModule(model, monet.plan(model, args, kwargs, budget="1GB", exact=True))
    assert isinstance(model, Several)
    wanted = [p for p in model.parameters() if p.requires_grad]
    for heads, missing in (((True, False), model.unused), ((False, True), model.used)):
        out = planned(*args, **kwargs)["heads"]
        loss = sum(t.sum() for t, take in zip((out[0], out[1][0]), heads, strict=True) if take)
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        none = {id(p) for p, gradient in zip(wanted, found, strict=True) if gradient is None}
        assert none == {id(p) for p in missing.parameters()}


def test_an_unknown_option_is_said_with_a_close_one() -> None:
    with pytest.raises(TypeError, match=r"plan\(\) got .*'time_limit'; did you mean 'time_limit_s'\?"):
        _planned(_net(), time_limit=3)


def test_outputs_without_gradients_are_refused() -> None:
    class Chooses(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).argmax(-1)

    with pytest.raises(CaptureError, match="no output of the model has a gradient"):
        monet.plan(Chooses(3, 3), torch.randn(2, 3), budget="1MB")


class Rounds(nn.Module):
    """A second output whose derivative is zero everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x * self.a), torch.round(x * self.b * 8)


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_that_are_zero_by_derivation_are_there(accumulate: bool) -> None:
    model, x = Rounds(), torch.rand(3, 4)
    planned = monet.MonetModule(model, monet.plan(model, (x,), budget="1MB", accumulate=accumulate))
    sum(out.sum() for out in planned(x)).backward()
    assert model.b.grad is not None and not model.b.grad.any() and model.a.grad is not None and model.a.grad.all()
    model.zero_grad()
    planned(x)[0].sum().backward()
    assert model.b.grad is None and model.a.grad is not None


def test_planning_inside_no_grad_is_planning() -> None:
    model = _net()
    with torch.no_grad():
        planned = _planned(model)
        assert not planned(_rows()).requires_grad
    planned(_rows()).sum().backward()
    assert all(p.grad is not None for p in planned.parameters())


def test_a_second_backward_pass_is_refused() -> None:
    loss = _planned(_net())(_rows()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="or by a backward pass before this one"):
        loss.backward()


def test_gradient_hooks_of_parameters_are_called() -> None:
    model = _net()
    planned, eager = _planned(model), copy.deepcopy(model)
    calls: list[str] = []
    for net, name in ((planned, "planned"), (eager, "eager")):
        weight = net.get_parameter("0.weight")
        weight.register_hook(lambda gradient, name=name: calls.append(name) or gradient * 3)  # type: ignore[func-returns-value]
        weight.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(f"{name} after"))
        net(_rows()).square().sum().backward()
    assert calls == ["planned", "planned after", "eager", "eager after"]
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_gradients_may_be_set_to_zero_instead_of_none() -> None:
    model = _net()
    planned, eager = _planned(model), copy.deepcopy(model)
    places = None
    for _ in range(3):
        for net in (planned, eager):
            net.zero_grad(set_to_none=False)
            net(_rows()).square().sum().backward()
        now = [p.grad.data_ptr() for p in planned.parameters() if p.grad is not None]
        assert places is None or places == now  # the same memory, as in eager
        places = now
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


# Around the step.


def test_evaluation_in_inference_mode_between_steps() -> None:
    model = _net()
    planned, eager = _planned(model), copy.deepcopy(model)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (planned, eager)]
    for _ in range(2):
        for net, optimizer in zip((planned, eager), optimizers, strict=True):
            optimizer.zero_grad()
            net(_rows()).square().mean().backward()
            optimizer.step()
        with torch.inference_mode():
            assert torch.equal(planned(_rows(2)), eager(_rows(2)))
    assert all(torch.equal(p, q) for p, q in zip(planned.parameters(), eager.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net: net.half(), "0.weight is torch.float16 on cpu, and the plan was made for torch.float32"),
        (lambda net: net.bfloat16(), "0.weight is torch.bfloat16"),
        (lambda net: net.get_parameter("3.bias").requires_grad_(False), "3.bias has requires_grad=False"),
        (lambda net: net.requires_grad_(False), "requires_grad=False, and the plan was made for True"),
    ],
)
def test_a_changed_model_is_said(change: Any, said: str) -> None:
    planned = _planned(_net())
    change(planned)
    with pytest.raises(PlanMismatch, match=said):
        planned(_rows())


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {}, "()"),
        ((1, 2), {}, "(_, _)"),
        (([_rows()],), {}, "([_])"),
        ((_rows(),), {"mask": None}, "(_, mask=_)"),
    ],
)
def test_other_inputs_are_said_as_a_call(arguments: Any, named: Any, said: str) -> None:
    planned = _planned(_net())
    with pytest.raises(PlanMismatch, match=re.escape(f"planned for inputs (_) and is called with {said};")):
        planned(*arguments, **named)


def test_a_last_smaller_batch_is_said() -> None:
    planned = _planned(_net())
    with pytest.raises(PlanMismatch, match=r"shape \(3, 6\).*drop_last"):
        planned(_rows(3))
    planned(_rows()).sum().backward()


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(9, 9)

    def forward(self, text: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(text).flatten(0, 1), labels.flatten())


def test_inputs_may_share_memory_when_planning_or_later() -> None:
    """A text and its labels: one tensor, two parts of one, or two tensors; the plan is for their shapes."""
    whole = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(0))
    other = torch.randint(0, 9, (4, 8), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    model = _Pair()
    calls = [(whole, whole), (whole, other), (whole[:, :], whole.clone())]
    for sample in calls:
        planned = monet.MonetModule(copy.deepcopy(model), monet.plan(model, sample, budget="1GB", exact=True))
        for text, labels in calls:
            assert torch.equal(planned(text, labels), model(text, labels))
    shifted = (whole[:, :-1], whole[:, 1:])
    planned = monet.MonetModule(model, monet.plan(model, shifted, budget="1GB", exact=True))
    assert torch.equal(planned(*shifted), copy.deepcopy(model)(*shifted))
    trainer = monet.optimize(
        model, {"text": whole, "labels": whole}, loss_fn=lambda out, _: out,
        optimizer=torch.optim.SGD(model.parameters(), 0.1), budget="1GB", exact=True,
    )  # fmt: skip
    expected = copy.deepcopy(model)(whole, other)
    assert torch.equal(trainer({"text": whole, "labels": other})[0], expected)


@pytest.mark.slow
def test_no_cache_of_keys_is_made_while_a_plan_runs() -> None:
    model, tokens = tiny_gpt2(), torch.zeros(1, 4, dtype=torch.int64)
    model.config.use_cache = True  # type: ignore[union-attr]
    planned = monet.MonetModule(model, monet.plan(model, (tokens,), budget="1GB", exact=True))
    found = planned(tokens)
    assert found.keys() == {"logits"} and len(copy.deepcopy(model)(tokens).keys()) == 2
    assert model.config.use_cache is True  # type: ignore[union-attr]
    with pytest.raises(CaptureError, match=r"returns a .*DynamicCache.* set model.config.use_cache = False"):
        monet.plan(model, (tokens,), {"use_cache": True}, budget="1GB")


@pytest.mark.parametrize("repeated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_cache_that_the_same_forward_pass_reads_is_refused(repeated: bool) -> None:
    model, tokens = tiny_gpt2(), torch.zeros(1, 4, dtype=torch.int64)
    model.config.use_cache = True  # type: ignore[union-attr]
    if repeated:
        blocks = model.transformer.h  # type: ignore[union-attr]
        blocks.append(blocks[0])  # type: ignore[union-attr, operator, index]
        with pytest.raises(CaptureError, match="without it the model's outputs are others"):
            monet.plan(model, (tokens,), budget="1GB")
        model.config.use_cache = False  # type: ignore[union-attr]
    planned = monet.MonetModule(model.eval(), monet.plan(model, (tokens,), budget="1GB", exact=True))
    assert torch.equal(planned(tokens)["logits"], copy.deepcopy(model)(tokens)["logits"])


def test_a_model_that_fails_by_itself_is_as_it_was() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, layer, nn.Linear(4, 4))
    with pytest.raises(CaptureError, match="reduction dim"):
        monet.plan(model, (torch.zeros(2, 3),), budget="1GB")
    assert not any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    assert torch.equal(layer(torch.zeros(2, 3)), layer.bias.expand(2, 3))


# Configurations.


@pytest.mark.parametrize(
    ("options", "parameter", "output"),
    [
        ({"autocast": "bfloat16"}, torch.float32, HALF),
        pytest.param({"dtype": "bfloat16"}, HALF, HALF, marks=pytest.mark.slow),
        pytest.param({"accumulate": True}, torch.float32, torch.float32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_configuration_has_a_precision_and_may_accumulate(
    tmp_path: Path, options: dict[str, Any], parameter: torch.dtype, output: torch.dtype
) -> None:
    """Planned and measured in it: the measured peak is the promised one."""
    images = InputSpec(shape=(16, 3, 16, 16), dtype=options.get("dtype", "float32"))
    config = Config(
        model="monet.models.examples:tiny_resnet", kwargs={"width": 4}, inputs=(images,), **options
    )  # fmt: skip
    model, (args, kwargs) = build_model(config), make_inputs(config, 0)
    assert {p.dtype for p in model.parameters()} == {parameter}
    with precision_of(config):
        assert model(*args, **kwargs).dtype is output
        prepared = prepare(model, args, kwargs, preparing=Preparing(accumulate=config.accumulate))
    # Where oneDNN has no such convolutions, the peak of eager's and of every plan is within one of them.
    share = "90%" if onednn_takes(output) else "100%"
    plan = plan_prepared(prepared, share, Solving(gap=0.5, time_limit_s=10)).plan
    plan.save(tmp_path / "step.plan.json")
    measured = measure_config(config, tmp_path / "step.plan.json", progress=False)
    assert measured["planned"]["allocator_peak_bytes"] == plan.peak_bytes
    assert measured["eager"]["allocator_peak_bytes"] == pytest.approx(prepared.eager_peak_bytes, rel=0.01)


class Squared(nn.Module):
    """One operator takes a weight twice: autocast casts it once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight @ self.weight)


def test_a_weight_that_one_operator_takes_twice_is_cast_once() -> None:
    torch.manual_seed(0)
    model = Squared()
    x = torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        planned = monet.MonetModule(copy.deepcopy(model), monet.plan(model, (x,), budget="1MB", exact=True))
        outputs = [module(x) for module in (model, planned)]
    for output in outputs:
        output.float().square().sum().backward()
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(model.weight.grad, planned.weight.grad)  # type: ignore[arg-type]


def test_a_tied_weight_is_cast_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 4))
    model[2].weight = model[0].weight
    eager, x = copy.deepcopy(model), torch.randn(64, 8)
    with _bfloat16():
        planned = monet.MonetModule(model, monet.plan(model, (x,), budget="1MB", exact=True))
        outputs = planned(x), eager(x)
    for output in outputs:
        output.float().square().sum().backward()
    assert torch.equal(*outputs)
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("kind", [nn.GRU, nn.RNN])
@pytest.mark.slow
def test_weights_of_a_recurrent_layer_are_cast_once(kind: Callable[[int, int], nn.Module]) -> None:
    """It takes them anew for each element of a sequence."""
    torch.manual_seed(0)
    model = kind(6, 10)
    x = torch.randn(5, 3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        captured = capture(model, (x,))
        planned = monet.MonetModule(copy.deepcopy(model), monet.plan(model, (x,), budget="1MB", exact=True))
        outputs = [module(x)[0] for module in (model, planned)]
    of_weights = [op for op in captured.graph.forward if op.name.startswith("_to_copy") and _is_matrix(captured, op)]
    assert len(of_weights) == 2
    for output in outputs:
        output.float().square().sum().backward()
    assert torch.equal(outputs[0], outputs[1])
    assert_same_gradients(planned, model)


def _is_matrix(captured: Captured, op: Operator) -> bool:
    sources = {source.value for source in captured.graph.sources if source.kind == PARAMETER}
    given = captured.graph.values[next(references(op.args))]
    return given.name in sources and len(given.shape) == 2
