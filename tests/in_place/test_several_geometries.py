"""Plans for several geometries ahead, and batches padded to a few lengths: nothing is planned after the start."""

from __future__ import annotations

import gc
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_cases import HASTE, batches, equal, pair, told, train
from small_models import Transformer
from torch import Tensor

import monet
from monet.api.in_place.plan_source import PlanSource
from monet.errors import ConfigError
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.native import allocator

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.fixture
def nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*_: Any, **__: Any) -> Any:
        raise AssertionError("planned after the start")

    monkeypatch.setattr(PlanSource, "planned", planned)


@pytest.mark.usefixtures("nothing_is_planned")
def test_batches_of_several_sizes(caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    plans = monet.plan_many(planned, [*batches(4, 8), (batches(4)[0],)], "10MB", exact=True, **HASTE)
    assert [plan.model["inputs"][0]["shape"][0] for plan in plans] == [4, 8]
    monet.apply(planned, plans, on_mismatch="error")
    data = batches(8, 4, 4, 8)
    assert equal(train(planned, data), train(eager, data))
    found = monet.applied(planned)
    assert (found.planned_calls, found.plans) == (4, plans) and not told(caplog)


@pytest.mark.skipif(not allocator.available(), reason="there is no C++ compiler")
def test_one_arena_and_one_budget() -> None:
    """Tight enough for both sizes to want all of it: the larger one, which holds more beside the arena, stays within
    the budget in an arena that the smaller one might have made larger."""
    model, other = pair()
    (images,) = batches(16)
    alone = monet.plan(other, images, budget="97%", exact=True, **HASTE)
    plans = monet.plan_many(model, batches(12, 16), alone.budget_bytes, exact=True, **HASTE)
    assert all(plan.peak_bytes <= alone.budget_bytes for plan in plans)
    assert plans[1].fixed_bytes > plans[0].fixed_bytes and plans[1].budget_bytes == alone.budget_bytes
    monet.apply(model, plans)
    train(model, batches(16, 12))
    model.zero_grad()
    promised = monet.applied(model).peak_bytes
    assert promised <= alone.budget_bytes
    gc.collect()
    state = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    arena = max(plan.arena_bytes for plan in plans)
    before = allocator.live_bytes() - arena
    allocator.reset_peak()
    model(images).sum().backward()
    assert arena < allocator.peak_bytes() - before <= promised - state


def test_files_of_plans(tmp_path: Path) -> None:
    planned, eager = pair()
    files = []
    for number, plan in enumerate(monet.plan_many(planned, batches(4, 2), budget="10MB", exact=True, **HASTE)):
        files.append(tmp_path / f"{number}.plan.json")
        plan.save(files[-1])
    monet.apply(planned, files)
    assert equal(train(planned, batches(2, 4)), train(eager, batches(2, 4)))
    assert monet.applied(planned).planned_calls == 2


def test_a_share_is_of_the_largest_step() -> None:
    model, _ = pair()
    small, large = monet.plan_many(model, batches(2, 8), "100%", **HASTE)
    full = max(large.solver["eager_peak_bytes"], large.solver["baseline_peak_bytes"])
    assert large.budget_bytes == full and small.budget_bytes == full - (large.fixed_bytes - small.fixed_bytes)


def test_what_is_asked_wrongly() -> None:
    model, _ = pair()
    for samples, sentence in (([], "no samples"), (batches(2)[0], "one Tensor"), ([(object(),)], "sample 0")):
        with pytest.raises(ConfigError, match=sentence):
            monet.plan_many(model, samples, "10MB")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'exact'"):
        monet.plan_many(model, batches(2), "10MB", exakt=True)
    with pytest.raises(monet.InfeasibleBudget) as refused:
        monet.plan_many(model, batches(2, 8), "200kB", **HASTE)
    needed = refused.value.smallest_bytes
    assert needed is not None
    plans = monet.plan_many(model, batches(2, 8), needed, **HASTE)
    with pytest.raises(monet.InfeasibleBudget, match=r"[\d.]+% of eager's peak") as refused:
        monet.plan_many(model, batches(2, 8), "30%", **HASTE)
    needed = refused.value.smallest_bytes or 0
    share = re.search(r"([\d.]+%) of eager's peak", str(refused.value))
    assert share is not None
    assert monet.plan_many(model, batches(2, 8), share[1], **HASTE)[1].budget_bytes >= needed
    other = monet.plan(model, batches(4)[0], budget="10MB", exact=True, **HASTE)
    with pytest.raises(ConfigError, match="same options"):
        monet.apply(model, [*plans, other])
    with pytest.raises(ConfigError, match="no plans"):
        monet.apply(model, [])
    with pytest.raises(TypeError, match=r"monet\.apply takes several"):
        monet.MonetModule(model, plans)  # type: ignore[arg-type]


def collated(features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Texts padded to the longest of them, as a tokenizer's collate function does."""
    longest = max(len(feature["input_ids"]) for feature in features)
    batch: dict[str, list[Tensor]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for feature in features:
        tokens = feature["input_ids"]
        missing = longest - len(tokens)
        batch["input_ids"].append(torch.nn.functional.pad(tokens, (0, missing)))
        batch["attention_mask"].append((torch.arange(longest) < len(tokens)).long())
        batch["labels"].append(torch.nn.functional.pad(tokens, (0, missing), value=-100))
    return {name: torch.stack(values) for name, values in batch.items()}


def plain(features: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = torch.utils.data.default_collate(features)
    return batch


def texts(*lengths: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": torch.randint(1, 50, (length,), generator=generator)} for length in lengths]


def test_what_is_padded_with_what() -> None:
    pad = pickle.loads(pickle.dumps(monet.pad_to_buckets(collated, [8, 4], pad_token_id=7)))
    batch = pad(texts(3, 2))
    assert batch["input_ids"][:, 3].tolist() == [7, 7]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert batch["labels"][1, 2:].tolist() == [-100, -100] and batch["labels"][0, 3] == -100
    assert [pad(texts(length))["labels"].shape[1] for length in (1, 4, 5, 8)] == [4, 4, 8, 8]
    twice = monet.pad_to_buckets(lambda _: {"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 6).long()}, [4, 8])
    assert {value.shape[1] for value in twice([]).values()} == {8}
    left = monet.pad_to_buckets(collated, [4], padding_side="left")(texts(3))
    assert left["attention_mask"].tolist() == [[0, 1, 1, 1]]
    assert [sample["input_ids"].shape[1] for sample in pad.samples(texts(6, 5))] == [4, 8]


def test_a_mask_is_made_and_labels_of_a_text_stay() -> None:
    tokens = torch.arange(1, 4)
    feature = {"input_ids": tokens, "labels": torch.tensor([0.0, 1.0, 0.0]), "class": torch.tensor(2)}
    batch = monet.pad_to_buckets(plain, [5])([feature, feature])
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert batch["labels"].shape == (2, 3) and batch["class"].tolist() == [2, 2]
    assert "attention_mask" not in monet.pad_to_buckets(plain, [5], attention_mask=False)([feature])
    boxes = {"input_ids": tokens, "boxes": torch.ones(3, 4)}
    assert monet.pad_to_buckets(plain, [5], pad_values={"boxes": 9})([boxes])["boxes"][0, 4].tolist() == [9.0] * 4
    with pytest.raises(ConfigError, match=r"pad_values=\{'boxes': 0\}"):
        monet.pad_to_buckets(plain, [5])([boxes])


def test_what_cannot_be_padded() -> None:
    with pytest.raises(ConfigError, match="9 tokens, more than the largest bucket, 8"):
        monet.pad_to_buckets(collated, [8])(texts(9))
    with pytest.raises(ConfigError, match="a list"):
        monet.pad_to_buckets(lambda features: features, [8])(texts(2))
    with pytest.raises(ConfigError, match=r"nothing in a batch of \['x'\]"):
        monet.pad_to_buckets(plain, [8])([{"x": torch.ones(3)}])
    for buckets in ([], [0], [1.5], [8, "16"]):
        with pytest.raises(ConfigError, match="buckets must be"):
            monet.pad_to_buckets(collated, buckets)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="padding_side"):
        monet.pad_to_buckets(collated, [8], padding_side="top")  # type: ignore[arg-type]


def causal_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 32, "attn_implementation": "eager",
        "use_cache": False,  # as the Trainer will set it
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**sizes))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_planned")
def test_the_trainer_of_transformers_with_varying_lengths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("transformers")
    data = texts(3, 9, 14, 5, 16, 2, 7, 8, 4, 11, 6, 12)
    seen: set[int] = set()

    def trained(apply: bool) -> Any:
        from transformers import Trainer, TrainingArguments

        model, pad = causal_model(), monet.pad_to_buckets(collated, [8, 16])

        def noting(features: list[Any]) -> dict[str, Any]:
            batch = pad(features)
            seen.add(batch["input_ids"].shape[1])
            return batch

        if apply:
            samples = [{**sample, "num_items_in_batch": torch.tensor(1.0)} for sample in pad.samples(data[:2])]
            monet.apply(model, monet.plan_many(model, samples, "20MB", exact=True, **HASTE), on_mismatch="error")
        settings = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=2, num_train_epochs=2, report_to=[], use_cpu=True,
            disable_tqdm=True, logging_strategy="no", seed=0, save_strategy="no", max_grad_norm=1.0,
        )  # fmt: skip
        trainer = Trainer(model, settings, train_dataset=data, data_collator=noting)
        trainer.train()
        return model

    planned, eager = with_torchvision_schemas(lambda: (trained(True), trained(False)))
    assert equal(list(planned.state_dict().values()), list(eager.state_dict().values()))
    found = monet.applied(planned)
    assert seen == {8, 16} and (found.planned_calls, found.eager_calls, len(found.plans)) == (12, 0, 2)
    assert not told(caplog)


def test_padding_changes_no_gradient_but_by_rounding() -> None:
    """A sum over more tokens, of which more are left out, is taken in another order."""
    pytest.importorskip("transformers")
    model = with_torchvision_schemas(causal_model)
    gradients = []
    for collate in (collated, monet.pad_to_buckets(collated, [16])):
        model.zero_grad()
        model(**collate(texts(5, 7))).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_nested_samples_are_refused_at_once() -> None:
    model = Transformer()
    plans = monet.plan_many(model, [{"tokens": torch.randint(0, 50, (2, 5))}], "10MB", **HASTE)
    monet.apply(model, plans)
    model(tokens=torch.randint(0, 50, (2, 5))).sum().backward()
    assert monet.applied(model).planned_calls == 1
