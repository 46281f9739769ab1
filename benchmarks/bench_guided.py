"""The profile-guided arena beside eager PyTorch, and beside other allocators of the C library. On the CPU.

python benchmarks/bench_guided.py [--model resnet50] [--again]

After figures 2 to 4 and section 5.3 of Sekiyama et al. (2018): AlexNet, GoogLeNet, ResNet-50 and Inception-ResNet-v2 in
training and inference, and a sequence-to-sequence LSTM whose lengths vary. For each, in processes of their own:

* ``pairs``: eager's and guided steps alternate in one process; the ratio of their times is the median of the pairs';
* ``eager`` and ``guided``: the peak of the process's resident set over its steps alone (``/proc/self/clear_refs``), the
  peak of what torch holds, page faults a step;
* ``jemalloc``, ``tcmalloc``: ``eager`` under ``LD_PRELOAD`` of Debian's packages, where they are installed;
* ``check``: nanoseconds that recording, looking up and serving take a request, from 64-byte tensors that are made and
  freed by turns inside and outside of steps, and the share of a step that this is.

Inception-ResNet-v2 is timm's and is left out where that is not installed.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
import torch
from job_process import run_apart
from torch import Tensor, nn
from torch.nn import functional

import monet
from monet.api.guided import ProfileGuidedArena
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.native import allocator

THREADS = 2
WARM_UP, PAIRS = 3, 8
PROCESS_LIMIT_S = 900.0
LIBRARIES = {
    "jemalloc": Path("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"),
    "tcmalloc": Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
}
LENGTHS = range(5, 31)
"""Of the sequences; each batch has one."""
CHECKED = 20_000
Step = Callable[[int], None]


def _vision(name: str, batch: int, size: int, training: bool) -> Step:
    def make() -> nn.Module:
        if name == "inception_resnet_v2":
            import timm

            network: nn.Module = timm.create_model(name)
        else:
            import torchvision

            network = getattr(torchvision.models, name)(**({"aux_logits": False} if name == "googlenet" else {}))
        return network

    model = with_torchvision_schemas(make).train(training)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))

    def train(_number: int) -> None:
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    def infer(_number: int) -> None:
        with torch.inference_mode():
            model(images)

    return train if training else infer


class Translation(nn.Module):
    """An encoder and a decoder, each an LSTM of one cell a token, so that what a step does depends on its length."""

    def __init__(self, words: int = 2000, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.decoder = nn.LSTMCell(width, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = None
        for token in self.source(source).unbind(1):
            state = self.encoder(token, state)
        outputs = []
        for token in self.target(target).unbind(1):
            state = self.decoder(token, state)
            outputs.append(state[0])
        return functional.cross_entropy(self.head(torch.stack(outputs[:-1], 1)).flatten(0, 1), target[:, 1:].flatten())


def _length(number: int) -> int:
    return random.Random(number).choice(LENGTHS)


def _translation(training: bool) -> Step:
    model = Translation()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        source, target = torch.randint(2000, (2, 32, _length(number)), generator=generator)
        if not training:
            with torch.inference_mode():
                model(source, target)
            return
        model(source, target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# Name → what makes its step; how many steps of each kind are counted; the key of a step, if it has one.
MODELS: dict[str, tuple[Callable[[bool], Step], int, Callable[[int], Any]]] = {
    "alexnet": (lambda training: _vision("alexnet", 32, 224, training), 12, lambda _: None),
    "googlenet": (lambda training: _vision("googlenet", 16, 224, training), 12, lambda _: None),
    "resnet50": (lambda training: _vision("resnet50", 8, 224, training), 12, lambda _: None),
    "inception_resnet_v2": (lambda training: _vision("inception_resnet_v2", 4, 299, training), 12, lambda _: None),
    "seq2seq": (_translation, 1000, lambda _: None),
    "seq2seq, key=length": (_translation, 1000, _length),
}


def _arena(name: str) -> ProfileGuidedArena:
    return monet.profile_guided(max_plans=len(LENGTHS) if "key" in name else 8)


def _pairs(name: str, training: bool) -> dict[str, Any]:
    make, count, key = MODELS[name]
    torch.manual_seed(0)
    step, arena = make(training), _arena(name)
    for number in range(WARM_UP if count < 100 else 60):
        step(number)
        with arena.step(key=key(number)):
            step(number)
    eager, guided = [], []
    for number in range(PAIRS if count < 100 else 150):
        for context, into in ((nullcontext(), eager), (arena.step(key=key(number)), guided)):
            begun = time.perf_counter()
            with context:
                step(number)
            into.append(time.perf_counter() - begun)
    ratios = [b / a for a, b in zip(eager, guided, strict=True)]
    report, check = arena.report(), _check()
    served_s = check["guided_s"] - check["plain_s"]
    requests = report.requests / max(1, report.steps - report.recorded_steps)
    return {
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
        "eager_s": statistics.median(eager),
        "requests": requests,
        "check_ns": 1e9 * served_s,
        "check_share": served_s
        * report.requests
        / max(1, report.steps - report.recorded_steps)
        / statistics.median(eager),
        "report": asdict(report),
    }


def _check() -> dict[str, float]:
    """Seconds of a tensor made and freed, outside of a step and served in one; medians of alternating rounds."""
    arena = monet.profile_guided(layout_s=0.0)

    def tensors() -> float:
        begun = time.perf_counter()
        for _ in range(CHECKED):
            torch.empty(16)
        return (time.perf_counter() - begun) / CHECKED

    with arena.step():
        tensors()
    rounds: dict[str, list[float]] = {"plain_s": [], "guided_s": []}
    for _ in range(7):
        rounds["plain_s"].append(tensors())
        with arena.step():
            rounds["guided_s"].append(tensors())
    return {name: statistics.median(of) for name, of in rounds.items()}


def _alone(name: str, training: bool, guided: bool) -> dict[str, Any]:
    """A process that does only these steps, from the first on: its peaks, and page faults of a later step."""
    make, count, key = MODELS[name]
    torch.manual_seed(0)
    step = make(training)
    allocator.live_bytes()  # counts from here on; parameters are there already
    arena = _arena(name) if guided else None
    Path("/proc/self/clear_refs").write_text("5")
    allocator.reset_peak()
    seconds: list[float] = []
    faults = 0
    for number in range(count):
        before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        with arena.step(key=key(number)) if arena is not None else nullcontext():
            step(number)
        seconds.append(time.perf_counter() - begun)
        if number >= count // 2:
            faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    found = {
        "resident_peak_bytes": _resident("VmHWM"),
        "resident_bytes": _resident("VmRSS"),
        "torch_peak_bytes": allocator.peak_bytes(),
        "faults_a_step": faults / (count - count // 2),
        "median_s": statistics.median(seconds[count // 2 :]),
    }
    if arena is not None:
        found["report"] = asdict(arena.report())
    return found


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(THREADS)
    if job["what"] == "pairs":
        return _pairs(job["model"], job["training"])
    return _alone(job["model"], job["training"], job["what"] == "guided")


def _told(row: Mapping[str, Any]) -> str:
    pairs, eager, guided = (row.get(name, {}) for name in ("pairs", "eager", "guided"))
    if "error" in pairs or "error" in eager or "error" in guided:
        return str({name: row[name] for name in ("pairs", "eager", "guided") if "error" in row.get(name, {})})
    report = guided["report"]
    others = ", ".join(
        f"{name} {row[name]['resident_peak_bytes'] / eager['resident_peak_bytes']:.3f}" for name in LIBRARIES
        if "resident_peak_bytes" in row.get(name, {})
    )  # fmt: skip
    return (
        f"time {pairs['ratio']:.3f} of eager's {pairs['eager_s'] * 1e3:.0f} ms; resident peak "
        f"{guided['resident_peak_bytes'] / 1e6:.0f} of {eager['resident_peak_bytes'] / 1e6:.0f} MB ({others}); faults "
        f"{guided['faults_a_step']:.0f} of {eager['faults_a_step']:.0f}; {report['moved']} and {report['missed']} of "
        f"{report['requests']} moved and missed, "
        f"{report['plans']} plans, {report['layout_s']:.2f} s of layout; check {pairs['check_ns']:.0f} ns, "
        f"{pairs['check_share']:.2%} of a step"
    )


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
@click.option("--again", is_flag=True, help="Run those again that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(models: tuple[str, ...], again: bool, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        answer.write_text(json.dumps(_answer(json.loads(job))))
        return
    apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
    rows: dict[str, Any] = record.known("guided")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for model in models or MODELS:
            for training in (True, False):
                key = f"{model}, {'training' if training else 'inference'}"
                if key in rows and not again:
                    continue
                click.echo(key)
                asked = {"model": model, "training": training}
                row = {what: apart({**asked, "what": what}, folder) for what in ("eager", "guided", "pairs")}
                for library, file in LIBRARIES.items():
                    if file.exists():
                        asked_eager = {**asked, "what": "eager"}
                        row[library] = apart(asked_eager, folder, environment={"LD_PRELOAD": str(file)})
                rows[key] = {**row, "commit": record.COMMIT}
                click.echo(f"  {_told(rows[key])}")
                record.write("guided", rows)


if __name__ == "__main__":
    main()
