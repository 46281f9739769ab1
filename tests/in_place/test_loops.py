"""Training loops of others after one line: they see the model, its steps run by plans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_cases import HASTE, batches, equal, pair, told, train
from torch import Tensor, nn

import monet
from monet.errors import ExecutionError
from monet.models.torchvision_schemas import with_torchvision_schemas

pytestmark = pytest.mark.usefixtures("hasty_orders")


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 50, (count, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index].clone()}


def language_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 32, "attn_implementation": "eager",
    }  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes))


def trained(folder: Path, apply: dict[str, Any] | None, checkpointing: bool = False, **settings: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    model = language_model()
    if apply is not None:
        monet.apply(model, **apply)
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=1, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", seed=0, gradient_checkpointing=checkpointing, save_strategy="no",
        **settings,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts(22), eval_dataset=Texts(6))
    trainer.train()
    return trainer


def weights_differ(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_the_trainer_of_transformers(checkpointing: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A causal language model, micro-batches, clipping, evaluation between and saving; the last batch is smaller."""
    pytest.importorskip("transformers")
    settings = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "eval_strategy": "steps", "eval_steps": 1}
    options = {"budget": "20MB", "exact": True, "accumulate": True, **HASTE}

    def run() -> tuple[Any, Any]:
        return (
            trained(tmp_path / "eager", None, checkpointing, **settings),
            trained(tmp_path / "planned", options, checkpointing, **settings),
        )

    eager, planned = with_torchvision_schemas(run)
    found = monet.applied(planned.model)
    # A model with checkpoints in it is planned shape by shape: the smaller last batch runs without a plan.
    counts = (5, 1, 1) if checkpointing else (6, 0, 2)
    assert (found.planned_calls, found.eager_calls, len(found.plans)) == counts
    assert weights_differ(eager.model, planned.model) == 0.0
    losses = [[entry["eval_loss"] for entry in t.state.log_history if "eval_loss" in entry] for t in (eager, planned)]
    assert losses[0] == losses[1] and len(losses[0]) == 3
    assert planned.model.config.use_cache == eager.model.config.use_cache
    assert any("gradient checkpointing" in sentence for sentence in told(caplog)) == checkpointing
    planned.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / "config.json").is_file()
    again = type(planned.model).from_pretrained(tmp_path / "saved")
    assert weights_differ(again, planned.model) == 0.0
    prompt = torch.ones(1, 4, dtype=torch.int64)
    generated = planned.model.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, again.generate(prompt, max_new_tokens=3, do_sample=False, pad_token_id=0))


@pytest.mark.slow
def test_the_trainer_in_bfloat16(tmp_path: Path) -> None:
    """accelerate puts a forward under autocast into the model after the line."""
    pytest.importorskip("transformers")
    options = {"budget": "20MB", "exact": True, **HASTE}

    def run() -> tuple[Any, Any]:
        return trained(tmp_path / "eager", None, bf16=True), trained(tmp_path / "planned", options, bf16=True)

    eager, planned = with_torchvision_schemas(run)
    found = monet.applied(planned.model)
    assert (found.planned_calls, found.eager_calls) == (5, 1)
    assert found.plans[0].model.get("autocast") is not None or planned.model.__dict__.get("forward") is not None
    assert weights_differ(eager.model, planned.model) == 0.0


@pytest.fixture
def accelerate() -> Iterator[Any]:
    """A process can set accelerate up once."""
    module: Any = pytest.importorskip("accelerate")
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    module.state.GradientState._reset_state()
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    module.state.GradientState._reset_state()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision: str, accelerate: Any) -> None:
    results = []
    for apply in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
        if apply:
            monet.apply(model, budget="1MB", exact=True, on_mismatch="replan", **HASTE)
        accelerator = accelerate.Accelerator(mixed_precision=precision, cpu=True, gradient_accumulation_steps=2)
        data: Any = [(torch.randn(6, 8), torch.randint(4, (6,))) for _ in range(7)]
        data[-1] = (data[-1][0][:3], data[-1][1][:3])
        prepared, optimizer, loader = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), 1e-2), torch.utils.data.DataLoader(data, batch_size=None)
        )
        torch.manual_seed(1)
        for images, labels in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(nn.functional.cross_entropy(prepared(images), labels))
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        results.append(accelerator.get_state_dict(prepared))
        unwrapped = accelerator.unwrap_model(prepared)
        assert type(unwrapped) is nn.Sequential
        if apply:
            found = monet.applied(model)
            assert (found.planned_calls, found.eager_calls, len(found.plans)) == (7, 0, 2)
        accelerator.free_memory()
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A group of processes with one in it."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("view", [False, True])
def test_a_model_in_distributed_data_parallel(view: bool) -> None:
    """Of one process: its hooks get all gradients, also after ``no_sync``."""
    planned, eager = pair()
    monet.apply(planned, budget="10MB", exact=True, **HASTE)
    around = nn.parallel.DistributedDataParallel(planned, gradient_as_bucket_view=view)
    data = batches(8, 8, 3, 8)
    assert equal(train(around, data)[: -len(eager.state_dict())], train(eager, data)[: -len(eager.state_dict())])
    found = monet.applied(planned)
    assert (found.planned_calls, found.eager_calls, len(found.plans)) == (4, 0, 2)
    with around.no_sync():
        around(data[0]).sum().backward()
    around(data[0]).sum().backward()
    for _ in range(2):
        eager(data[0]).sum().backward()
    for one, other in zip(planned.parameters(), eager.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.allclose(one.grad, other.grad)


@pytest.mark.usefixtures("one_process")
def test_gradients_that_add_up_are_refused_in_distributed_data_parallel() -> None:
    model, _ = pair()
    monet.apply(model, budget="10MB", accumulate=True, **HASTE)
    around = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(ExecutionError, match="plan without accumulate"):
        around(batches(8)[0])
    model(batches(8)[0]).sum().backward()
