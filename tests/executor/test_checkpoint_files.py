"""The files of a checkpoint: whose they are, what is done with others', and what is said of damaged ones."""

from __future__ import annotations

import gc
import os
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import waiting_child
from torch import nn
from trainer_cases import Batch, assert_same, case_loss

import monet
from monet.errors import ConfigError, ExecutionError, InfeasibleBudget
from monet.executor.copying.checkpoint import Checkpoint, Finished
from monet.plans.plan import Plan

WIDTH = 24


class Named(nn.Module):
    """With a layer of this name."""

    def __init__(self, name: str = "first") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.name = name
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH), "last": nn.Linear(WIDTH, 10)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers["last"](self.layers[self.name](x).tanh())
        return out


def batch(step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(6, WIDTH, generator=generator), torch.arange(6) % 10


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def optimized(
    path: Path | str | None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    name: str = "first",
    **options: Any,
) -> monet.Trainer:
    model = Named(name)
    plan = None if "budget" in options else plan_of(name)
    return monet.optimize(
        model, *batch(), loss_fn=case_loss, optimizer=make_optimizer(model), checkpoint=path, plan=plan, **options
    )


@cache
def plan_of(name: str) -> Plan:
    return optimized(None, name=name, budget="100%", time_limit_s=1).plan


def weights_of(trainer: monet.Trainer) -> dict[str, torch.Tensor]:
    model = trainer._step.model.model
    assert isinstance(model, nn.Module)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def after(path: Path, steps: int) -> dict[str, torch.Tensor]:
    """Weights that a training leaves which ends then."""
    trainer = optimized(path)
    while trainer.steps < steps:
        trainer(*batch(trainer.steps))
    left = weights_of(trainer)
    del trainer
    gc.collect()
    return left


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def test_a_training_whose_files_are_gone_ends(tmp_path: Path) -> None:
    trainer = optimized(tmp_path / "run")
    trainer(*batch())
    (tmp_path / "run").unlink()
    for _ in range(2):
        with pytest.raises(ExecutionError, match="the checkpoint of this training is gone"):
            trainer(*batch())
    assert trainer.steps == 1 and sorted(files_in(tmp_path)) == ["run.plan.json", "run.step"]


def test_a_training_whose_files_are_gone_leaves_those_of_the_next_one_alone(tmp_path: Path) -> None:
    old = optimized(tmp_path / "run")
    old(*batch())
    remove_all(tmp_path)
    left = after(tmp_path / "run", 2)
    files = files_in(tmp_path)
    with pytest.raises(ExecutionError, match="the checkpoint of this training is gone"):
        old(*batch())
    assert files_in(tmp_path) == files
    again = optimized(tmp_path / "run")
    assert again.steps == 2
    assert_same(weights_of(again), left, "what the new training left")


def test_files_that_are_gone_when_a_step_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, real = optimized(tmp_path / "run"), Checkpoint.finish

    def removed_before(self: Checkpoint, finished: Finished) -> None:
        if finished.steps == 1:
            remove_all(tmp_path)
        real(self, finished)

    monkeypatch.setattr(Checkpoint, "finish", removed_before)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="the checkpoint of this training is gone"):
            trainer(*batch())
    assert trainer.steps == 0 and not files_in(tmp_path)


def test_files_that_are_gone_while_a_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, real = optimized(tmp_path / "run"), torch.save

    def removed_after(*args: Any) -> None:
        real(*args)
        (tmp_path / "run").unlink()

    before = (tmp_path / "run.step").read_bytes()
    monkeypatch.setattr(torch, "save", removed_after)
    with pytest.raises(ExecutionError, match="the checkpoint of this training is gone"):
        trainer(*batch())
    assert (tmp_path / "run.step").read_bytes() == before and len(files_in(tmp_path)) == 2


def test_names_may_have_any_character(tmp_path: Path) -> None:
    trainer = optimized(tmp_path / "run", name="first/inner")
    trainer(*batch())
    with pytest.raises(IndexError):  # and is undone
        trainer(batch()[0], torch.full((6,), 99))
    trainer(*batch(1))
    left = weights_of(trainer)
    del trainer
    gc.collect()
    again = optimized(tmp_path / "run", name="first/inner")
    assert again.steps == 2
    assert_same(weights_of(again), left, "what was found")


def test_a_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    after(tmp_path / "run", 1)
    head, rng = tmp_path / "run.step", random.Random(2)
    whole = head.read_bytes()
    damaged = [whole[: len(whole) // 2], b"", whole[:-1], whole + b"0"]
    for place in (0, len(whole) - 1, len(whole) - 20, *(rng.randrange(len(whole)) for _ in range(9))):
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        damaged.append(bytes(changed))
    for content in damaged:
        head.write_bytes(content)
        with pytest.raises(ConfigError, match=r"run\.step cannot be read .*Begin a new one under another name"):
            optimized(tmp_path / "run")
    torch.save({"described": {}, "steps": 3}, head)
    with pytest.raises(ConfigError, match=r"run\.step cannot be read .*an older monet's"):
        optimized(tmp_path / "run")
    head.write_bytes(whole)
    assert optimized(tmp_path / "run").steps == 1


@pytest.mark.parametrize("names", [("run",), ("run.plan.json",), ("run", "run.plan.json")])
def test_files_of_others_are_left_alone(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("somebody else's")
    files = files_in(tmp_path)
    with pytest.raises(ConfigError, match=f"no checkpoint, .*; remove {' and '.join(names)}, or name another one"):
        optimized(tmp_path / "run")
    assert files_in(tmp_path) == files


def test_a_training_that_has_lost_how_far_it_was_does_not_begin_anew(tmp_path: Path) -> None:
    after(tmp_path / "run", 2)
    (tmp_path / "run.step").unlink()
    with pytest.raises(ConfigError, match=r"or one that has lost its run\.step; remove run and run\.plan\.json, or"):
        optimized(tmp_path / "run")


def test_a_large_file_that_is_another_ones(tmp_path: Path) -> None:
    after(tmp_path / "run", 1)
    (tmp_path / "run").write_text("somebody else's")
    files = files_in(tmp_path)
    with pytest.raises(ConfigError, match="run has not the 0 bytes of this plan"):
        optimized(tmp_path / "run")
    assert files_in(tmp_path) == files


@pytest.mark.parametrize("moment", ["the first file", "before its plan", "before its step"])
def test_a_kill_before_the_first_step_is_no_obstacle(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "run"
    if moment == "the first file":
        path.touch()
    else:
        optimized(path)
        gc.collect()
        path.write_bytes(bytes(5000))  # room that was set aside for another plan
        if moment == "before its plan":
            (tmp_path / "run.plan.json").unlink()
    after(path, 1)
    assert optimized(path).steps == 1


def test_a_step_is_written_without_a_copy_in_memory(tmp_path: Path) -> None:
    trainer = optimized(tmp_path / "run")
    trainer.optimizer.state[next(iter(trainer.optimizer.param_groups[0]["params"]))]["more"] = torch.zeros(8 << 20)
    tracemalloc.start()
    try:
        trainer(*batch())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "run.step").stat().st_size > 32 << 20 and peak < 8 << 20


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    after(tmp_path / "run", 1)
    left = [tmp_path / "run.step.tmp0123abcd", tmp_path / "run.plan.json.tmp0123abcd"]
    others = [tmp_path / name for name in ("run.step.tmpnotes", "other.step.tmp0123abcd", "run.step.tmp0123abcd.txt")]
    for path in (*left, *others):
        path.touch()
    assert optimized(tmp_path / "run").steps == 1
    assert not any(path.exists() for path in left) and all(path.exists() for path in others)


def test_a_setting_may_have_any_name(tmp_path: Path) -> None:
    def named(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": list(model.parameters()), "names": ["all"]}], 0.1, momentum=0.9)

    optimized(tmp_path / "run", named)(*batch())
    gc.collect()
    again = optimized(tmp_path / "run", named)
    assert again.steps == 1 and again.optimizer.param_groups[0]["names"] == ["all"]


def test_a_forked_child_keeps_nobody_from_a_checkpoint(tmp_path: Path) -> None:
    trainer = optimized(tmp_path / "run")
    trainer(*batch())
    with waiting_child():
        with pytest.raises(ExecutionError, match="a trainer, or a model that it trained, has this file"):
            optimized(tmp_path / "run")  # it is still this process's
        del trainer
        gc.collect()
        assert optimized(tmp_path / "run").steps == 1


def test_a_forked_child_makes_no_steps_of_a_checkpoint(tmp_path: Path) -> None:
    trainer = optimized(tmp_path / "run")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            trainer(*batch())
        except ExecutionError as error:
            status = 0 if "belongs to the process that this one was forked from" in str(error) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    trainer(*batch())
    assert trainer.steps == 1


def test_nothing_stays_of_what_is_refused(tmp_path: Path) -> None:
    values = Named().state_dict()
    some = {name: tensor for name, tensor in values.items() if "last" not in name}
    twisted = {name: tensor.to(torch.complex64) for name, tensor in values.items()}
    with pytest.raises(ConfigError, match=r"weights has nothing for 'layers\.last\.weight'"):
        optimized(tmp_path / "run", weights=some)
    with pytest.raises(ConfigError, match="has complex values; the model's tensor is real"):
        optimized(tmp_path / "run", weights=twisted)
    with pytest.raises(ConfigError, match="weights is a list; a function of a name, or a mapping, is needed"):
        optimized(tmp_path / "run", weights=[1])
    with pytest.raises(InfeasibleBudget):
        optimized(tmp_path / "run", budget=1000)
    assert not files_in(tmp_path)
    after(tmp_path / "run", 1)
    files = files_in(tmp_path)
    with pytest.raises(ConfigError, match="other groups of parameters"):
        optimized(tmp_path / "run", lambda model: torch.optim.SGD([*model.parameters()][::-1], 0.1, momentum=0.9))
    assert files_in(tmp_path) == files


def test_weights_may_be_a_mapping() -> None:
    values = {name: torch.full_like(tensor, 0.5) for name, tensor in Named().state_dict().items()}
    assert_same(weights_of(optimized(None, weights=values)), values, "weights")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a\0b", "cannot have the character NUL"),
        ("n" * 245, "the name is too long"),
        ("p/" * 3000, "a file in a folder"),
    ],
)
def test_names_that_no_file_has(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        optimized(f"{tmp_path}/{name}")
    assert not files_in(tmp_path)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("pipe", "circle"):
        with pytest.raises(ConfigError, match="a file in a folder that is there is needed"):
            optimized(tmp_path / name)
