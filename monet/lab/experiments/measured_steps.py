"""One eager and one planned step of a configuration, each in a process of its own: seconds and peaks."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tqdm import tqdm

from monet.base.silence import silence
from monet.models.config import Config

if TYPE_CHECKING:
    from monet.executor.module import MonetModule
    from monet.native.channel import Copied

logger = logging.getLogger(__name__)

WARM_UP_STEPS = 1
"""Not timed: first uses build kernels and make the arena resident."""
LEAST_STEPS, MOST_STEPS, STEPS_S = 3, 30, 1.0
"""A step's time, and each operator's in it, is the median of as many steps as take about a second: a step of some
milliseconds differs from the next by a third, and one of minutes is not run more often than need be (once)."""
MEASURED_FIELDS = ("step_s", "allocator_peak_bytes", "resident_peak_bytes")
"""What is measured of a step; docs/summary-format.md has a line for each."""


def measure_config(
    config: Config, plan_path: Path, *, eager: bool = True, progress: bool = True
) -> dict[str, dict[str, float | int | None]]:
    """``eager`` and ``planned``, each with ``step_s`` (the median of steps after a warm-up one),
    ``allocator_peak_bytes`` (all that torch held at once, parameters and inputs included) and
    ``resident_peak_bytes`` (of the whole process, interpreter and libraries included).

    ``eager`` False leaves the eager step out, which is the same for every plan. The gradient of every
    output is ones; no loss and no optimiser run. A process that the system
    kills (out of memory) yields None everywhere.
    """
    results: dict[str, dict[str, float | int | None]] = {}
    runs = (*((("eager", None),) if eager else ()), ("planned", plan_path))
    for name, path in tqdm(runs, desc="measuring steps", disable=not progress):
        results[name] = measured_step(config, path, _threads(plan_path), quiet=not progress).values
    return results


_IMPORTED = (
    "monet.lab.experiments.fork_server",
    "monet.executor.module", "monet.executor.step_times", "monet.models.model_loading", "monet.models.sample_inputs",
    "monet.native.devices",
)  # fmt: skip


@cache
def _processes(on_cpu: bool) -> BaseContext:
    """Where steps are measured: forks of a process that has done nothing but import what a step needs, which takes
    longer than a small step. A GPU's driver does not survive a fork, so its steps have processes that begin anew."""
    if not on_cpu:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def expect_measuring(config: Config) -> None:
    """Have what a step's process imports imported by now, beside what the caller does until it measures one."""
    if config.device == "cpu":
        _processes(True)
        forkserver.ensure_running()


@dataclass(frozen=True, slots=True)
class MeasuredCopies:
    """Of a planned step: bytes a second in each direction while something is copied, None where nothing is, or only a
    GPU knows; and how long it waits for copies."""

    write_rate: float | None = None
    read_rate: float | None = None
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """``values``: of ``MEASURED_FIELDS``, None where the process was killed. ``seconds``: of a planned step, by
    signature: of each of its steps that runs it, in place. With what it waits for ``copies`` they are the step's."""

    values: dict[str, float | int | None]
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    copies: MeasuredCopies = MeasuredCopies()


def measured_step(
    config: Config, plan_path: Path | None, threads: int, *, in_place: bool = False, quiet: bool
) -> MeasuredStep:
    """Eager's step, or that of a plan, in a process of its own. ``in_place``: time each operator, too."""
    try:
        with ProcessPoolExecutor(1, mp_context=_processes(config.device == "cpu")) as pool:
            return pool.submit(_step, config, plan_path, threads, in_place, quiet).result()
    except BrokenProcessPool:
        name = "eager" if plan_path is None else "planned"
        logger.warning("the %s step's process was killed, most likely for lack of memory", name)
        return MeasuredStep(dict.fromkeys(MEASURED_FIELDS))


def _threads(plan_path: Path) -> int:
    from monet.plans.plan import Plan

    return int(Plan.load(plan_path).environment["threads"])


def _step(config: Config, plan_path: Path | None, threads: int, in_place: bool, quiet: bool) -> MeasuredStep:
    """Runs in the child process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with silence(quiet):
        return _measured(config, plan_path, threads, in_place)


def _measured(config: Config, plan_path: Path | None, threads: int, in_place: bool) -> MeasuredStep:
    import torch
    import torch.utils._pytree as pytree

    from monet.executor.module import MonetModule
    from monet.models.model_loading import build_model, precision
    from monet.models.sample_inputs import make_inputs
    from monet.native import devices
    from monet.plans.plan import Plan

    torch.set_num_threads(threads)
    device = torch.device(config.device)
    devices.library(device)  # before anything is allocated
    model = build_model(config)
    args, kwargs = make_inputs(config, config.seed)
    module: torch.nn.Module = model
    if plan_path is not None:
        module = MonetModule(model, Plan.load(plan_path))

    def free_gradients() -> None:
        if not config.accumulate:
            model.zero_grad(set_to_none=True)
        for tensor in (*args, *kwargs.values()):
            tensor.grad = None

    kept = config.gradients == "kept"

    def step() -> tuple[float, int | None]:
        """Seconds, and the peak."""
        if not kept:
            free_gradients()
        devices.synchronize(device)
        devices.reset_peak(device)
        start = time.perf_counter()
        with precision(config):
            result = module(*args, **kwargs)
        outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        del result
        if kept:
            free_gradients()
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        devices.synchronize(device)
        return time.perf_counter() - start, devices.peak_bytes(device)

    for _ in range(WARM_UP_STEPS):
        step()
    times: list[float] = []
    peaks: list[int | None] = []
    while _goes_on(times, 1):
        seconds, peak = step()
        times.append(seconds)
        peaks.append(peak)
    most = None if None in peaks else max(peak for peak in peaks if peak is not None)
    values = dict(zip(MEASURED_FIELDS, (median(times), most, _resident_peak_bytes()), strict=True))
    if in_place and isinstance(module, MonetModule):
        return MeasuredStep(values, *_in_place(module, step))
    return MeasuredStep(values)


def _goes_on(times: Sequence[float], least: int) -> bool:
    return len(times) < least or (sum(times) < STEPS_S and len(times) < MOST_STEPS)


def _in_place(
    module: MonetModule, step: Callable[[], tuple[float, object]]
) -> tuple[Mapping[str, Sequence[float]], MeasuredCopies]:
    """By signature, seconds of each of the plan's steps that runs it; and what is measured of its copies. What the step
    takes beside both (autograd, the model's checks, gradients that are freed) is shared out in proportion. It was
    1.3 %, the median of the 13 plans of ``benchmarks/bench_seconds.py`` that were not replaced."""
    from monet.executor.step_times import StepTimes, seconds_by_signature
    from monet.plans.format import WAIT

    before = _copied(module)
    seconds: dict[int, list[float]] = {}
    whole: list[float] = []
    while _goes_on(whole, LEAST_STEPS):
        with StepTimes(module._step.runner) as times:
            taken_s, _ = step()
        whole.append(taken_s)
        for number, each_s in times.steps():
            seconds.setdefault(number, []).append(each_s)
    found = seconds_by_signature(module._step, seconds)
    waits = [number for number, planned in enumerate(module.plan.steps) if planned.kind == WAIT]
    done = _copied(module)
    copies = MeasuredCopies(
        _rate(done.written_bytes - before.written_bytes, done.write_s - before.write_s),
        _rate(done.read_bytes - before.read_bytes, done.read_s - before.read_s),
        sum(median(seconds[number]) for number in waits),
    )
    share = (median(whole) - copies.waited_s) / sum(each_s for of in found.values() for each_s in of)
    return {key: [each_s * share for each_s in of] for key, of in found.items()}, copies


def _copied(module: MonetModule) -> Copied:
    """By its steps so far, to a disk and back."""
    from monet.executor.copying.disk_copies import DiskCopies
    from monet.native.channel import Copied

    copies = module._step.runner.copies
    return copies.channel.copied() if isinstance(copies, DiskCopies) else Copied(0, 0, 0.0, 0.0)


def _rate(size: int, seconds: float) -> float | None:
    return size / seconds if size > 0 and seconds > 0 else None


def _resident_peak_bytes() -> int | None:
    """The most resident memory this process ever had. Not ``getrusage``: across exec that starts at the parent's."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
