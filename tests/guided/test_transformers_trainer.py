"""transformers' ``Trainer`` with batches of varying lengths, its steps over a profile-guided arena."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import monet
from monet.api.guided import ProfileGuidedArena
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.native.allocator import available

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
LENGTHS = (8, 24, 16, 8, 24, 16, 24, 8, 16, 24, 8, 16)


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    """One text a batch, of a length that changes from batch to batch."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.arange(LENGTHS[index]) % 50
        return {"input_ids": tokens, "labels": tokens.clone()}


def trained(folder: Path, arena: ProfileGuidedArena | None) -> dict[str, Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class GuidedSteps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            assert arena is not None
            self.step = arena.step()
            self.step.__enter__()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.step.__exit__(None)

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    settings = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=1, num_train_epochs=3, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=settings, train_dataset=Texts(), callbacks=[GuidedSteps()] if arena is not None else []
    )
    trainer.train()
    return dict(model.state_dict())


@pytest.mark.slow
def test_a_trainer_with_varying_lengths(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    arena = monet.profile_guided()
    plain = with_torchvision_schemas(lambda: trained(tmp_path / "plain", None))
    guided = with_torchvision_schemas(lambda: trained(tmp_path / "guided", arena))
    assert all(torch.equal(plain[name], guided[name]) for name in plain)
    report = arena.report()
    assert report.steps == 3 * len(LENGTHS) and report.failed_steps == 0
    assert report.served > 0.5 * report.requests
