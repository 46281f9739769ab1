"""Training a decoder whose parameters, gradients and optimiser state are larger than the memory it gets, over a disk.

python benchmarks/bench_state.py [--folder DISK] [--only large] [--steps 5]

``twin``: a small decoder in a fifth of its state, beside eager on the same batches: losses and parameters bit by bit.
``large``: a Llama of 26 layers x 1,536 with AdamW (16 bytes a parameter) in 3 GB. It is built empty, and its values are
made one tensor at a time, so that it is never in memory whole. ``largest``: 32 layers x 3,072, which takes 46 GB of the
disk.

Per step: seconds, what was predicted, the bytes that torch's allocator held, and the resident memory that the process
had beside its own, sampled every 5 ms. Its own is what it has with all libraries loaded, after a step of a small
network.
"""

from __future__ import annotations

import gc
import json
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
from job_process import run_apart

from monet.models.torchvision_schemas import with_torchvision_schemas

PROCESS_LIMIT_S = 2400.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
NETWORKS: dict[str, dict[str, Any]] = {
    "twin": {"layers": 3, "width": 512, "words": 2000, "length": 64, "batch": 4},
    "large": {"layers": 26, "width": 1536, "words": 32_000, "length": 512, "batch": 1},
    "largest": {"layers": 32, "width": 3072, "words": 32_000, "length": 512, "batch": 1},
}
BUDGETS = {"twin": 0.2, "large": 3_000_000_000, "largest": 3_000_000_000}
"""Bytes, or a share of 16 bytes a parameter."""
SAMPLE_S = 0.005


def _network(layers: int, width: int, words: int, **_: Any) -> Any:
    """Empty: its memory is not touched."""
    return with_torchvision_schemas(partial(_llama, layers, width, words))


def _llama(layers: int, width: int, words: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers,
        num_attention_heads=width // 128, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # its buffers are made by the model, and in no checkpoint
    return model.train()


def _weights(model: Any) -> Any:
    """Values by name, the same in every process."""
    import torch

    tensors = dict(model.named_parameters())

    def values(name: str) -> Any:
        shape = tensors[name].shape
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        return 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))

    return values


def _batch(size: dict[str, Any], seed: int) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(size["words"], (size["batch"], size["length"] + 1), generator=generator)
    return {"input_ids": words[:, :-1].contiguous()}, words[:, 1:].contiguous()


def _loss(outputs: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


class _Resident:
    """The most resident memory of this process while the block runs, in bytes."""

    def __enter__(self) -> _Resident:
        self.most, self._stop = self.now(), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.most = max(self.most, self.now())

    @staticmethod
    def now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _load_libraries(folder: str) -> None:
    """All that planning and steps load, by those of a small network: it is the process's own, whatever is trained."""
    import torch
    from torch import nn

    import monet

    small = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    batch = torch.randn(8, 512), torch.randn(8, 512)
    optimizer = torch.optim.AdamW(small.parameters())
    offload = f"disk:{folder},write=1GB/s,read=1GB/s"
    trainer = monet.optimize(
        small, *batch, loss_fn=nn.functional.mse_loss, optimizer=optimizer, budget="60%", offload=offload
    )
    trainer(*batch)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    import monet
    from monet.native import allocator
    from monet.native.allocator import live_bytes

    live_bytes()  # from here on it knows what is freed, too
    _load_libraries(job["folder"])
    size = NETWORKS[job["network"]]
    model = _network(**size)
    weights, count = _weights(model), sum(p.numel() for p in model.parameters())
    budget = BUDGETS[job["network"]]
    budget_bytes = int(budget if budget > 1 else budget * 16 * count)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    own_bytes, begun = _Resident.now(), time.perf_counter()
    with _Resident() as building:
        trainer = monet.optimize(
            model, *_batch(size, 0), loss_fn=_loss, optimizer=optimizer, budget=budget_bytes, return_outputs=False,
            offload=f"disk:{job['folder']}", exact=True, weights=weights, time_limit_s=60,
        )  # fmt: skip
    ready_s, plan = time.perf_counter() - begun, trainer.plan
    eager = _network(**size) if job["network"] == "twin" else None
    result: dict[str, Any] = {
        "parameters": count, "state_bytes": 16 * count, "budget_bytes": budget_bytes,
        "promised_peak_bytes": plan.peak_bytes, "second_memory_bytes": plan.second_bytes, "ready_s": ready_s,
        "own_bytes": own_bytes, "resident_while_planning_bytes": building.most - own_bytes,
        "rates": {k: plan.environment["second_memory"][k] for k in ("write_rate", "read_rate")},
        **{k: plan.solver[k] for k in ("objective_s", "bound_s", "bound_scope", "baseline_s")}, "steps": [],
    }  # fmt: skip
    if eager is not None:
        with torch.no_grad():
            for name, parameter in eager.named_parameters():
                parameter.copy_(weights(name))
        other = torch.optim.AdamW(eager.parameters(), 1e-3)
    for seed in range(job["steps"]):
        inputs, targets = _batch(size, seed)
        gc.collect()
        held = sum(plan.fixed[kind] for kind in ("parameters", "buffers", "inputs"))
        if seed:  # the first step makes them, and they are there from then on
            held += plan.fixed["optimizer_state"] + plan.arena_bytes
        other_bytes = allocator.live_bytes() - held
        allocator.reset_peak()
        with _Resident() as resident:
            began = time.perf_counter()
            loss, _ = trainer(inputs, targets)
            seconds = time.perf_counter() - began
        row: dict[str, Any] = {
            "seconds": seconds, "loss": float(loss), "resident_bytes": resident.most - own_bytes,
            "step_bytes": allocator.peak_bytes() - other_bytes,
        }  # fmt: skip
        if eager is not None:
            expected = _loss(eager(**inputs), targets)
            expected.backward()
            other.step()
            other.zero_grad()
            pairs = zip(model.parameters(), eager.parameters(), strict=True)
            row["bitwise"] = bool(torch.equal(loss, expected)) and all(torch.equal(a, b) for a, b in pairs)
        result["steps"].append(row)
    return result


def _said(name: str, found: dict[str, Any]) -> str:
    if "steps" not in found:
        return f"{name}: {found}"
    last, gb = found["steps"][1:], 1e9
    seconds = sorted(row["seconds"] for row in last)[len(last) // 2]
    return (
        f"{name}: {found['state_bytes'] / gb:.2f} GB of parameters, gradients and state in "
        f"{found['budget_bytes'] / gb:.2f} GB; promised {found['promised_peak_bytes']}, in steps "
        f"{max(row['step_bytes'] for row in last)} bytes; resident at most "
        f"{max(row['resident_bytes'] for row in last) / gb:.2f} GB beside the process's own; {seconds:.2f} s a step, "
        f"predicted {found['objective_s']:.2f}, bound {found['bound_s']:.2f}, without moves {found['baseline_s']:.2f}"
        + (f"; bitwise {all(row['bitwise'] for row in found['steps'])}" if "bitwise" in last[0] else "")
    )


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=None, help="On the disk to use.")
@click.option("--only", "names", multiple=True, type=click.Choice(list(NETWORKS)))
@click.option("--steps", default=5, show_default=True)
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(folder: Path | None, names: tuple[str, ...], steps: int, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        answer.write_text(json.dumps(_run(json.loads(job))))
        return
    rows: dict[str, Any] = record.known("state")
    with TemporaryDirectory(dir=folder) as disk, TemporaryDirectory() as answers:
        for name in names or NETWORKS:
            found = _apart({"network": name, "steps": steps, "folder": disk}, Path(answers))
            click.echo(_said(name, found))
            if "steps" in found:
                rows[name] = found
                record.write("state", rows)


if __name__ == "__main__":
    main()
