"""The first run on a machine with a GPU: what is there, whether the arena serves, the tests, promises and times.

python benchmarks/first_gpu_run.py [PART ...] --out FOLDER [--device cpu --tiny]

Time on such a machine is short, so each part is a process with a limit, and one that fails or is cut off stops no
other. Results are lines of JSON in ``FOLDER/parts.jsonl``; what a part printed is in ``FOLDER/PART.txt``. It needs
PyTorch with CUDA, a C++ compiler and highspy; neither a network nor an environment of its own. ``--device cpu --tiny``
is the dry run that the tests make. Exit status: 0 where every part has ended well.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_networks import checkpoint, large, small

ROOT = Path(__file__).parent.parent
PROMISES = ("resnet", "mlp", "attention")
NETWORKS = ("resnet50", "gpt2", "llama")
WAYS = ("eager", "checkpoint", "compile70", "compile50", "monet100", "monet70", "monet50", "monet35")
TINY_WAYS = ("eager", "checkpoint", "monet70")
LIMITS_S = {"env": 60, "smoke": 120, "tests": 240, "promise": 120, "times": 150}
"""Seconds for each part at most; on the CPU twice as many."""


# Each part in a process of its own.


class Here:
    """What a part runs on: ``device``, its ``name``, whether the networks are ``tiny``, and how long plans may take."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        import torch

        self.device, self.tiny = torch.device(device, 0) if device == "cuda" else torch.device(device), tiny
        self.solve_s = 5.0 if tiny else 30.0

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        from monet.native import devices

        devices.synchronize(self.device)

    def held_bytes(self) -> int:
        """What tensors and arenas have asked for and have not given back."""
        import torch

        from monet.native import devices

        if self.is_gpu:
            return int(torch.cuda.memory_stats(self.device)["requested_bytes.all.current"])
        devices.reset_peak(self.device)  # the peak from now on is what there is now
        return devices.peak_bytes(self.device) or 0


def env(here: Here) -> dict[str, Any]:
    """Versions, and the GPU."""
    import torch

    import monet  # noqa: F401

    names = "torch torchvision transformers numpy scipy highspy pydantic networkx platformdirs click pytest"
    installed = {of.metadata["Name"]: of.version for of in importlib.metadata.distributions()}
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "versions": {name: installed.get(name) for name in names.split()},
        "cuda": torch.version.cuda,
        "compiler": shutil.which(os.environ.get("CXX", "g++")),
    }
    if here.is_gpu:
        free, total = torch.cuda.mem_get_info()
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "cudnn": torch.backends.cudnn.version(),
            "free_bytes": free,
            "total_bytes": total,
        }
    return found


def smoke(here: Here) -> dict[str, Any]:
    """An arena serves two tensors, and a recording sees what a product asks for."""
    import torch

    from monet.native import devices, gpu_libraries

    library = devices.library(here.device)
    assert library is not None, "there is no native allocator for this device"
    arena = devices.arena(here.device, [[(1 << 20, 0), (1 << 20, 1 << 20)]], 1 << 21)
    arena.map()
    arena.enter(0)
    one, other = (torch.empty(1 << 18, device=here.device) for _ in range(2))
    arena.leave()
    one.fill_(1)
    other.fill_(2)
    inside = [arena.contains(tensor.data_ptr()) for tensor in (one, other)]
    found: dict[str, Any] = {"inside": inside, "sums": [one.sum().item(), other.sum().item()]}
    assert inside == [True, True] and found["sums"] == [1 << 18, 2 << 18]
    statistics = arena.statistics()
    assert (statistics.served, statistics.misses) == (2, 0), statistics
    del one, other
    arena.close()
    found["library_bytes"] = gpu_libraries.kept_bytes(here.device)
    with devices.recording(here.device) as recording:
        product = torch.ones(64, 64, device=here.device) @ torch.ones(64, 64, device=here.device)
    found["requests"] = [(event.index, event.bytes) for event in recording.events]
    del product
    return found


def promise(here: Here, network: str) -> dict[str, Any]:
    """The promised peak beside the measured one, misses from the first step on, and gradients beside eager's."""
    import torch

    import monet
    from monet.native import devices

    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    devices.library(here.device)  # counts all tensors from here on
    model, x = (part.to(here.device) for part in small(network, tiny=here.tiny))
    plan = _planned(lambda budget: monet.plan(model, (x,), budget=budget, time_limit_s=here.solve_s, exact=True), "80%")
    twin, planned = copy.deepcopy(model), monet.MonetModule(model, plan)
    arena = planned._step.runner.arena
    assert arena is not None
    misses, tangent, beside = [], None, 0
    for number in range(3):
        planned.zero_grad(set_to_none=True)
        gc.collect()
        here.synchronize()
        if number == 2:
            arena.unmap()
            ours = [*planned.parameters(), *planned.buffers(), x, tangent]
            beside = here.held_bytes() - sum(t.untyped_storage().nbytes() for t in ours if t is not None)
            devices.reset_peak(here.device)
        torch.manual_seed(number)
        y = planned(x)
        tangent = torch.ones_like(y) if tangent is None else tangent
        y.backward(tangent)
        here.synchronize()
        misses.append(arena.statistics().misses)
        if number < 2:
            del y  # the last is compared
    # What libraries keep is there before the step, and promised.
    measured = (devices.peak_bytes(here.device) or 0) - beside + plan.fixed.get("libraries", 0)
    torch.manual_seed(2)
    expected = twin(x)
    expected.backward(tangent)
    pairs = list(zip(planned.parameters(), twin.parameters(), strict=True))
    found = {
        "promised": plan.peak_bytes,
        "measured": measured,
        "fixed": dict(plan.fixed),
        "misses": misses,
        "first_miss": arena.statistics().first_miss,
        "equal_output": bool(torch.equal(y, expected)),
        "unequal_gradients": sum(not _same(p.grad, q.grad) for p, q in pairs),
    }
    assert measured == plan.peak_bytes and not any(misses) and not found["unequal_gradients"], found
    return found


def _same(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else bool((one == other).all())


def times(here: Here, network: str, way: str) -> dict[str, Any]:
    """Seconds and peak of a training step in one way."""
    import torch

    import monet
    from monet.native import devices

    devices.library(here.device)
    model, inputs, loss = large(network, here.device, tiny=here.tiny)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5) if network == "llama" else None
    call: Any = model
    if way == "checkpoint":
        checkpoint(model)
    elif way.startswith("compile"):
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = int(way.removeprefix("compile")) / 100
        call = torch.compile(model)

    def step() -> Any:
        model.zero_grad(set_to_none=True)
        value = loss(call, *inputs)
        value.backward()
        if optimizer is not None:
            optimizer.step()
        return value.detach()

    def planned(budget: str | int) -> Any:
        if not isinstance(budget, str):  # in the place of the one that was too small
            monet.remove(model)
        monet.apply(model, budget=budget, time_limit_s=here.solve_s)
        return step()

    begun = time.perf_counter()
    first = _planned(planned, f"{way.removeprefix('monet')}%") if way.startswith("monet") else step()
    found: dict[str, Any] = {"first_loss": first.item()}
    here.synchronize()
    found["first_step_s"] = time.perf_counter() - begun
    for _ in range(3):
        step()
    here.synchronize()
    devices.reset_peak(here.device)
    took = []
    for _ in range(3 if here.tiny else 10):
        start = time.perf_counter()
        step()
        here.synchronize()
        took.append(time.perf_counter() - start)
    found |= {"median_s": sorted(took)[len(took) // 2], "seconds": took, "peak": devices.peak_bytes(here.device)}
    if way.startswith("monet"):
        done = monet.applied(model)
        found |= {"promised": done.peak_bytes, "planned_calls": done.planned_calls, "eager_calls": done.eager_calls}
        assert done.eager_calls == 0, found
    return found


def _planned(made: Callable[[Any], Any], budget: str) -> Any:
    """``made`` with this budget, or with the least that is known to work where that is more."""
    import monet

    try:
        return made(budget)
    except monet.InfeasibleBudget as error:
        if error.smallest_bytes is None:
            raise
        return made(error.smallest_bytes)


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"env": env, "smoke": smoke, "promise": promise, "times": times}


# The run: a process a part.


def parts(wanted: list[str], *, tiny: bool) -> list[list[str]]:
    """Each as the words that name it."""
    found = [["env"], ["smoke"], ["tests"], *(["promise", network] for network in PROMISES)]
    found += [["times", network, way] for network in NETWORKS for way in (TINY_WAYS if tiny else WAYS)]
    return [words for words in found if not wanted or words[0] in wanted]


def command(words: list[str], device: str, *, tiny: bool) -> list[str]:
    """What runs a part. The tests of a GPU are only collected where there is none."""
    if words == ["tests"]:
        found = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "-m",
            "gpu",
            "tests/executor",
        ]
        return found if device == "cuda" else [*found, "--collect-only"]
    return [sys.executable, __file__, "--one", *words, "--device", device, *(["--tiny"] if tiny else [])]


def run(words: list[str], device: str, out: Path, *, tiny: bool) -> bool:
    """Run a part; returns whether it ended well."""
    name, begun = "-".join(words), time.monotonic()
    limit_s = LIMITS_S[words[0]] * (1 if device == "cuda" else 2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with (out / f"{name}.txt").open("w") as printed:
        try:
            status: int | str = subprocess.run(
                command(words, device, tiny=tiny), cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT,
                timeout=limit_s, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = f"cut off after {limit_s} s"
    lines = (out / f"{name}.txt").read_text().splitlines()
    result = json.loads(lines[-1]) if status == 0 and words != ["tests"] else {"last_lines": lines[-3:]}
    row = {"part": name, "status": status, "part_s": round(time.monotonic() - begun, 1), **result}
    with (out / "parts.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "words", nargs="*", metavar="PART", help="env, smoke, tests, promise, times; all, if none is named"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small networks and few ways")
    parser.add_argument("--out", type=Path, default=Path("first-gpu-run"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *arguments = options.words
        print(json.dumps(PARTS[name](Here(options.device, tiny=options.tiny), *arguments)))
        return 0
    unknown = set(options.words) - LIMITS_S.keys()
    if unknown:
        parser.error(f"there is no part {sorted(unknown)[0]}; parts are {', '.join(LIMITS_S)}")
    options.out.mkdir(parents=True, exist_ok=True)
    ended = [
        run(words, options.device, options.out.resolve(), tiny=options.tiny)
        for words in parts(options.words, tiny=options.tiny)
    ]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
