"""Plan files that are changed at random, checksum mended: each is refused, or runs with eager's results.

python benchmarks/bench_tampered.py [--count 100000] [--only module] [--jobs 2]

Six plans, of small models: of a module, with gradient accumulation, of a whole step with AdamW, with tensors that are
moved to the disk, for a range of shapes, with fused regions. A change is one to three edits at random places of the
JSON: another type, another number, text, a member or an element that is missing, twice, swapped with another, or
another place's. What ``Plan.load`` and the start of a step refuse is ``refused``; a file that says the same as before
is ``same``. All others run a step, whose results are compared with eager's: ``ran`` if they are as near as the plan's
own. ``faults`` are the rest: other results, an error that is no ``MonetError``, a process that ended.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import record
from tqdm import tqdm

COUNT = 100_000
CHUNK = 500
LIMIT_S = 1800.0
TOLERANCE = 2e-4
"""Of gradients and updated weights in float32, relative to the largest of a tensor: other algorithms add in another
order."""


class Case:
    """A model, its plan, and a step that gives all that a user could look at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self) -> Any:
        import torch
        from torch import nn

        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GELU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 64, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 5),
        )  # fmt: skip

    def inputs(self, seed: int = 0) -> Any:
        import torch

        return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(seed))

    def planned(self) -> Any:
        import monet

        return monet.plan(self.model(), self.inputs(), budget="90%", time_limit_s=3, cores=1)

    def _seen(self, model: Any, module: Any) -> list[Any]:
        import torch

        torch.manual_seed(1)
        outputs = module(self.inputs())
        outputs.square().mean().backward()
        return [outputs.detach(), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]

    def eager(self) -> list[Any]:
        model = self.model()
        return self._seen(model, model)

    def run(self, plan: Any) -> list[Any]:
        import monet

        model = self.model()
        return self._seen(model, monet.MonetModule(model, plan))


class Accumulating(Case):
    def planned(self) -> Any:
        import monet

        return monet.plan(self.model(), self.inputs(), budget="100%", accumulate=True, time_limit_s=3, cores=1)

    def _seen(self, model: Any, module: Any) -> list[Any]:
        import torch

        torch.manual_seed(1)
        for seed in range(2):
            module(self.inputs(seed)).square().mean().backward()
        return [*(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


class Whole(Case):
    def _optimizer(self, model: Any) -> Any:
        import torch

        return torch.optim.AdamW(model.parameters(), 1e-3)

    def planned(self) -> Any:
        import monet

        model = self.model()
        return monet.optimize(
            model, self.inputs(), self._targets(), loss_fn=self._loss, optimizer=self._optimizer(model), budget="97%",
            time_limit_s=3, cores=1,
        ).plan  # fmt: skip

    def _targets(self) -> Any:
        import torch

        return torch.arange(6) % 5

    @staticmethod
    def _loss(outputs: Any, targets: Any) -> Any:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def eager(self) -> list[Any]:
        import torch

        model = self.model()
        optimizer = self._optimizer(model)
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            loss = self._loss(model(self.inputs(seed)), self._targets())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [*found, *(p.detach() for p in model.parameters())]

    def run(self, plan: Any) -> list[Any]:
        import torch

        import monet

        model = self.model()
        trainer = monet.optimize(
            model, self.inputs(), self._targets(), loss_fn=self._loss, optimizer=self._optimizer(model), plan=plan
        )
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(trainer(self.inputs(seed), self._targets())[0])
        return [*found, *(p.detach() for p in model.parameters())]


class Moving(Case):
    def model(self) -> Any:
        import torch
        from torch import nn

        torch.manual_seed(5)
        return nn.Sequential(
            *(layer for _ in range(5) for layer in (nn.Linear(256, 256), nn.Tanh())), nn.Linear(256, 3)
        )

    def inputs(self, seed: int = 0) -> Any:
        import torch

        return torch.randn(1030, 256, generator=torch.Generator().manual_seed(seed))

    def planned(self) -> Any:
        import monet

        offload = f"disk:{self.folder},write=8GB/s,read=8GB/s"
        return monet.plan(self.model(), self.inputs(), budget="70%", offload=offload, time_limit_s=5, cores=1)


class Varying(Case):
    def model(self) -> Any:
        import torch

        from monet.models.examples import tiny_gpt

        torch.manual_seed(3)
        return tiny_gpt(dropout=0.0)

    def inputs(self, seed: int = 0) -> Any:
        import torch

        return torch.randint(0, 64, (4, 16 - seed), generator=torch.Generator().manual_seed(seed))

    def planned(self) -> Any:
        from torch.export import Dim

        import monet

        dynamic = {"text": {0: Dim("batch", max=4), 1: Dim("length", max=16)}}
        return monet.plan(self.model(), self.inputs(), budget="90%", dynamic=dynamic, time_limit_s=3, cores=1)

    def _seen(self, model: Any, module: Any) -> list[Any]:
        found = []
        for seed in (0, 5):
            model.zero_grad()
            outputs = module(self.inputs(seed))
            outputs.square().mean().backward()
            found += [outputs.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        return found


class Fused(Varying):
    def planned(self) -> Any:
        import monet

        return monet.plan(self.model(), self.inputs(), budget="90%", fused=True, time_limit_s=3, cores=1)

    def _seen(self, model: Any, module: Any) -> list[Any]:
        return Case._seen(self, model, module)


CASES: Mapping[str, type[Case]] = {
    "module": Case, "accumulating": Accumulating, "whole step": Whole, "moving": Moving, "varying": Varying,
    "fused": Fused,
}  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all members and elements; the checksum is mended and not a place."""
    found = [path] if path and path != ("sha256",) else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*found, *(place for key, child in children for place in _places(child, (*path, key)))]


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


_OTHERS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, 1e308, "", "x", "<b>", "\x1b[2J", "../..", "aten", [], [0],
    {}, {"a": 1}, [[]],
)  # fmt: skip


def _number(value: int | float, rng: random.Random) -> Any:
    step = rng.choice((1, -1, 64, -64, 4096, -value, value, rng.randint(-1000, 1000)))
    return value + step


def edited(document: Any, rng: random.Random) -> None:
    """One edit in place."""
    path = rng.choice(_places(document))
    parent, key, value = _at(document, path[:-1]), path[-1], _at(document, path)
    kind = rng.choice(("number", "number", "other", "elsewhere", "elsewhere", "missing", "twice", "swap"))
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = _number(value, rng)
    elif kind == "elsewhere":
        same = [place for place in _places(document) if type(_at(document, place)) is type(value)]
        parent[key] = copy.deepcopy(_at(document, rng.choice(same)))
    elif kind == "missing":
        del parent[key]
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(value))
    elif kind == "twice":
        parent[f"{key}{rng.choice(('', '2', '_s'))}x"] = copy.deepcopy(value)
    elif kind == "swap" and isinstance(parent, list) and len(parent) > 1:
        other = rng.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
    else:
        parent[key] = copy.deepcopy(rng.choice(_OTHERS))


def file_of(document: Mapping[str, Any]) -> bytes:
    """As a plan is written, with the checksum that belongs to it."""
    rows = [f"{json.dumps(name)}:{json.dumps(document[name])}" for name in sorted(document) if name != "sha256"]
    rows.insert(min(1, len(rows)), '"sha256":""')
    text = "{\n" + ",\n".join(rows) + "\n}\n"
    kept = b"\n".join(line for line in text.encode().split(b"\n") if not line.startswith(b'"sha256":'))
    return text.replace('"sha256":""', f'"sha256":"{hashlib.sha256(kept).hexdigest()}"').encode()


def _near(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        a.shape == b.shape and bool((a - b).abs().max() <= TOLERANCE * max(1e-3, float(b.abs().max())))
        for a, b in zip(found, expected, strict=True)
    )


def _outcome(case: Case, document: Any, seed: int, expected: list[Any], plan: Any, say: Callable[..., None]) -> str:
    from monet import MonetError, Plan

    rng = random.Random(seed)
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edited(document, rng)
    try:
        other = Plan.of_content(file_of(document))
        if other == plan:
            return "same"
        say(begins=seed)
        return "ran" if _near(case.run(other), expected) else f"fault: other results at {seed}"
    except MonetError:
        return "refused"
    except Exception:
        return f"fault: {traceback.format_exc()[-700:]} at {seed}"


def _work(job: Mapping[str, Any], answer: Path) -> None:
    warnings.simplefilter("ignore")
    import logging

    from monet import Plan

    logging.disable(logging.CRITICAL)
    case = CASES[job["case"]](Path(job["folder"]))
    data = Path(job["plan"]).read_bytes()
    plan, document = Plan.of_content(data), json.loads(data)
    expected = case.eager()
    assert _near(case.run(plan), expected), "the plan itself differs from eager"
    with answer.open("a") as out:

        def say(**line: Any) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        for seed in range(job["first"], job["first"] + job["count"]):
            say(seed=seed, outcome=_outcome(case, document, seed, expected, plan, say))


def _chunk(job: Mapping[str, Any]) -> list[str]:
    """Outcomes of all seeds of a chunk, in as many processes as it takes."""
    found: dict[int, str] = {}
    last = job["first"] + job["count"]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.jsonl"
        while len(found) < job["count"]:
            first = max(found, default=job["first"] - 1) + 1
            asked = json.dumps({**job, "first": first, "count": last - first})
            command = [sys.executable, __file__, "--job", asked, "--answer", str(answer)]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            lines = [json.loads(line) for line in answer.read_text().splitlines()] if answer.exists() else []
            found.update({line["seed"]: line["outcome"] for line in lines if "seed" in line})
            if len(found) < job["count"]:
                begun = [line["begins"] for line in lines if line.get("begins", -1) not in (*found, -1)]
                if not begun:
                    raise click.ClickException(f"a process ended with {ended.returncode}: {ended.stderr[-2000:]}")
                found[begun[-1]] = f"fault: the process ended with {ended.returncode} at {begun[-1]}"
    return list(found.values())


def _plan(name: str, folder: Path) -> Path:
    path = folder / f"{name.replace(' ', '_')}.json"
    command = [
        sys.executable,
        __file__,
        "--job",
        json.dumps({"plan_of": name, "folder": str(folder)}),
        "--answer",
        str(path),
    ]
    subprocess.run(command, check=True)
    return path


@click.command()
@click.option("--count", default=COUNT, show_default=True, help="Changed files in all.")
@click.option("--only", default="", help="Only plans whose name has this in it; the record is not written then.")
@click.option("--jobs", default=os.cpu_count(), show_default=True, help="Processes at a time.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(count: int, only: str, jobs: int, first: int, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        import torch

        torch.set_num_threads(1)
        asked = json.loads(job)
        if "plan_of" in asked:
            CASES[asked["plan_of"]](Path(asked["folder"])).planned().save(answer)
        else:
            _work(asked, answer)
        return
    names = [name for name in CASES if only in name]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(jobs) as pool:
        folder = Path(made)
        for name in names:
            plan, each = _plan(name, folder), count // len(names)
            work = [
                {"case": name, "plan": str(plan), "folder": str(folder), "first": first + begin,
                 "count": min(CHUNK, each - begin)}
                for begin in range(0, each, CHUNK)
            ]  # fmt: skip
            outcomes = [found for chunk in tqdm(pool.map(_chunk, work), total=len(work), desc=name) for found in chunk]
            kinds = Counter(found.partition(":")[0] for found in outcomes)
            rows[name] = {**kinds, "faults": [found for found in outcomes if found.startswith("fault")][:50]}
            click.echo(f"{name}: {dict(kinds)}")
            for fault in rows[name]["faults"]:
                click.echo(f"  {fault}")
    if not only:
        click.echo(f"wrote {record.write('tampered', rows)}")


if __name__ == "__main__":
    main()
