"""More training loops of others after one line, each bit by bit eager's over several steps."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from loop_cases import HASTE, batches, equal, pair, told, train
from torch import Tensor, nn

import monet
from monet.errors import CaptureError, ConfigError
from monet.models.torchvision_schemas import with_torchvision_schemas

_Result = TypeVar("_Result")

pytestmark = pytest.mark.usefixtures("hasty_orders")

EXACT: dict[str, Any] = {"budget": "20MB", "exact": True, **HASTE}


def needs(package: str) -> None:
    """Skips where it is not installed; it may be importable only beside torchvision's missing operators."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def with_packages(run: Callable[[], _Result]) -> _Result:
    """What ``run`` returns, which may import them: torchvision before others, who are half imported where it fails."""
    if importlib.util.find_spec("torchvision") is not None:
        with_torchvision_schemas(lambda: importlib.import_module("torchvision"))
    return run()


def state(model: nn.Module) -> list[Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def counts(model: nn.Module) -> tuple[int, int, int]:
    found = monet.applied(model)
    return found.planned_calls, found.eager_calls, len(found.plans)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Texts of one length, each with a class."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 40, (count, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "attention_mask": (tokens > 3).long(), "labels": tokens[0] % 3}


def classifier() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 16, "num_labels": 3, "attn_implementation": "eager",
    }  # fmt: skip
    return BertForSequenceClassification(BertConfig(**sizes))


def trainer_of(model: Any, folder: Path, **settings: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4, "num_train_epochs": 1, "report_to": [], "use_cpu": True, "seed": 0,
        "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no",
    }  # fmt: skip
    arguments = TrainingArguments(output_dir=str(folder), **{**defaults, **settings})
    return Trainer(model=model, args=arguments, train_dataset=Sentences(16))


def test_a_classifier_in_the_trainer_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """With dropout: the state of the generator is the checkpoint's."""
    needs("transformers")

    def run() -> list[list[Tensor]]:
        results = []
        for name, apply in (("eager", False), ("planned", True)):
            saving = {"save_strategy": "steps", "save_steps": 2}
            for resume in (False, True):
                model = classifier()
                if apply:
                    monet.apply(model, **EXACT)
                trainer = trainer_of(model, tmp_path / name, **saving)
                trainer.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-2") if resume else None)
                results.append(state(model))
                if apply:
                    # The first call runs eagerly: it completes the configuration (``problem_type``).
                    assert counts(model) == (1 if resume else 3, 1, 1)
        return results

    eager, resumed, planned, planned_resumed = with_packages(run)
    assert equal(eager, resumed) and equal(eager, planned) and equal(eager, planned_resumed)


def test_a_budget_that_is_too_small_is_no_reason_for_smaller_batches(tmp_path: Path) -> None:
    """``auto_find_batch_size`` retries where memory is out, and would try on and on."""
    needs("transformers")
    model = with_packages(classifier)
    monet.apply(model, **{**EXACT, "budget": "20kB"})
    trainer = trainer_of(model, tmp_path, auto_find_batch_size=True)
    with pytest.raises(monet.InfeasibleBudget, match="smallest budget known"):
        trainer.train()
    assert trainer._train_batch_size == 4


@pytest.mark.slow  # the trainer begins three times
def test_memory_that_is_out_elsewhere_makes_batches_smaller(tmp_path: Path) -> None:
    needs("transformers")

    def refuse(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if len(kwargs["input_ids"]) > 2:
            raise RuntimeError("CUDA out of memory.")

    def run() -> list[list[Tensor]]:
        results = []
        for apply in (False, True):
            model = classifier()
            model.register_forward_pre_hook(refuse, with_kwargs=True)
            if apply:
                monet.apply(model, **EXACT)
            trainer_of(model, tmp_path, auto_find_batch_size=True).train()
            results.append(state(model))
            if apply:
                planned, eager, plans = counts(model)
                assert planned >= 7 and (eager, plans) == (1, 1)  # as above
        return results

    assert equal(*with_packages(run))


@pytest.mark.parametrize("input_gradients", [False, True])
@pytest.mark.slow
def test_adapters_of_low_rank(input_gradients: bool) -> None:
    """PEFT: the base is frozen; a hook makes the embeddings require a gradient, as checkpointing needs."""
    needs("peft")

    def run() -> list[list[Tensor]]:
        import peft

        results = []
        for apply in (False, True):
            base = classifier()
            if input_gradients:
                base.enable_input_require_grads()
            config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=["query", "value"])
            model = peft.get_peft_model(base, config)
            if apply:
                monet.apply(model, **EXACT)
            optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
            torch.manual_seed(1)
            for batch in torch.utils.data.DataLoader(Sentences(12), batch_size=4):
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(state(model))
            if apply:
                assert counts(model) == (2, 1, 1)  # the first call completes the configuration
                assert not any(p.requires_grad for n, p in model.named_parameters() if "embeddings" in n)
        return results

    assert equal(*with_packages(run))


def test_a_gradient_scaler() -> None:
    """Gradients are scaled before, unscaled and clipped after; a step whose gradients are infinite is left out."""
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    for model in (planned, eager):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
        taken = 0
        for images in batches(8, 8, 8, 8) * 2:
            optimizer.zero_grad()
            scaler.scale(model(images).square().sum()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            taken += scaler.get_scale() >= before
        assert 0 < taken < 8
    assert equal(state(planned), state(eager))
    assert counts(planned) == (8, 0, 1)


def test_averages_of_weights_over_a_training() -> None:
    """The average is a copy of its own, and is evaluated and trained as any model."""
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    averages = []
    for model in (planned, eager):
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        train(model, batches(8, 8, 3, 8), between=lambda a=average, m=model: a.update_parameters(m))  # type: ignore[misc]
        average.eval()
        averages.append([*state(average), average(batches(8)[0])])
        average.train()
        averages[-1] += train(average, batches(8))
    assert equal(*averages)
    assert counts(planned) == (4, 0, 2)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 3)
        self.drop, self.use_reentrant = nn.Dropout(0.2), use_reentrant

    def block(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.drop(torch.relu(self.first(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=self.use_reentrant)
        out: Tensor = self.head(x)
        return out


def test_checkpoints_inside_of_the_model(caplog: pytest.LogCaptureFixture) -> None:
    """The plan takes their place: no block runs again but by the plan."""
    torch.manual_seed(0)
    planned = Checkpointed(False)
    eager = copy.deepcopy(planned)
    monet.apply(planned, **EXACT)
    for step in range(3):
        for model in (planned, eager):
            model.zero_grad()
            torch.manual_seed(step)
            model(torch.randn(6, 8)).square().sum().backward()
        assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(planned) == (3, 0, 1)
    (sentence,) = told(caplog)
    assert "gradient checkpointing" in sentence


def test_checkpoints_that_cannot_be_traced_are_refused() -> None:
    model = Checkpointed(True)
    monet.apply(model, **EXACT)
    with pytest.raises(CaptureError, match="use_reentrant=True"):
        model(torch.randn(6, 8).requires_grad_())


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_trainer_of_lightning(whole: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line in ``configure_model``, for the network that the module has, or for the module itself where its steps
    call it. Lightning zeroes gradients between forward and backward."""
    needs("lightning")

    def run() -> list[list[Tensor]]:
        import lightning

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self, apply: bool) -> None:
                super().__init__()
                self.apply_plan = apply
                self.net: nn.Module | None = None

            def configure_model(self) -> None:
                if self.net is None:
                    torch.manual_seed(0)
                    self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
                    if self.apply_plan:
                        monet.apply(self if whole else self.net, gradients="kept", **EXACT)

            def forward(self, x: Tensor) -> Tensor:
                assert self.net is not None
                out: Tensor = self.net(x)
                return out

            def training_step(self, batch: Any, index: int) -> Tensor:
                return nn.functional.cross_entropy(self(batch[0]), batch[1])

            def validation_step(self, batch: Any, index: int) -> None:
                self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters(), 1e-2)

        generator = torch.Generator().manual_seed(0)
        data = torch.utils.data.TensorDataset(
            torch.randn(22, 8, generator=generator), torch.randint(4, (22,), generator=generator)
        )
        results = []
        for apply in (False, True):
            loader = torch.utils.data.DataLoader(data, batch_size=4)
            trainer = lightning.Trainer(
                max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
                default_root_dir=str(tmp_path / str(apply)), gradient_clip_val=0.5,
            )  # fmt: skip
            module = Module(apply)
            torch.manual_seed(1)
            trainer.fit(module, loader, loader)
            results.append([*state(module), trainer.callback_metrics["loss"]])
            if apply:
                model = module if whole else module.net
                assert model is not None and counts(model) == (12, 0, 2)
                again = Module.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, apply=True)
                assert equal(state(again), state(module))
        return results

    assert equal(*with_packages(run))
    assert not any("gradients" in record.getMessage() for record in caplog.records if "monet" in record.name)


def test_fabric() -> None:
    needs("lightning")

    def run() -> list[list[Tensor]]:
        from lightning.fabric import Fabric

        results = []
        for apply in (False, True):
            model, _ = pair()
            fabric = Fabric(accelerator="cpu", devices=1)
            if apply:
                monet.apply(model, **EXACT)
            wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
            if apply:
                with pytest.raises(ConfigError, match=r"stands around the model; call monet\.apply on its \.module"):
                    monet.apply(wrapped, **EXACT)
            for images in batches(8, 8, 3):
                optimizer.zero_grad()
                fabric.backward(wrapped(images).square().mean())
                fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
                optimizer.step()
            results.append(state(model))
            if apply:
                assert counts(model) == (3, 0, 2)
        return results

    assert equal(*with_packages(run))


def test_a_loop_with_a_closure() -> None:
    """L-BFGS evaluates the model several times a step."""
    results = []
    for apply in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        if apply:
            monet.apply(model, **EXACT)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
        x, y = torch.randn(16, 4), torch.randn(16, 1)

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> Tensor:
            model.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        results.append(state(model))
    assert equal(*results)
    planned, eager, plans = counts(model)
    assert planned >= 12 and (eager, plans) == (0, 1)
