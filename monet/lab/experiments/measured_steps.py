"""One eager and one planned step of a configuration, each in a process of its own: seconds and peaks."""

from __future__ import annotations

import logging
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tqdm import tqdm

from monet.base.silence import silence
from monet.models.config import Config

logger = logging.getLogger(__name__)

WARM_UP_STEPS = 1
"""Not timed: first uses build kernels and make the arena resident."""
MEASURED_FIELDS = ("step_s", "allocator_peak_bytes", "resident_peak_bytes")
"""What is measured of a step; docs/summary-format.md has a line for each."""


def measure_config(
    config: Config, plan_path: Path, *, eager: bool = True, progress: bool = True
) -> dict[str, dict[str, float | int | None]]:
    """``eager`` and ``planned``, each with ``step_s`` (the step after a warm-up one),
    ``allocator_peak_bytes`` (all that torch held at once, parameters and inputs included) and
    ``resident_peak_bytes`` (of the whole process, interpreter and libraries included).

    ``eager`` False leaves the eager step out, which is the same for every plan. The gradient of every
    output is ones; no loss and no optimiser run. A process that the system
    kills (out of memory) yields None everywhere.
    """
    results: dict[str, dict[str, float | int | None]] = {}
    runs = (*((("eager", None),) if eager else ()), ("planned", plan_path))
    for name, path in tqdm(runs, desc="measuring steps", disable=not progress):
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                results[name] = pool.submit(_step, config, path, _threads(plan_path), not progress).result()
        except BrokenProcessPool:
            logger.warning("the %s step's process was killed, most likely for lack of memory", name)
            results[name] = dict.fromkeys(MEASURED_FIELDS)
    return results


def _threads(plan_path: Path) -> int:
    from monet.plans.plan import Plan

    return int(Plan.load(plan_path).environment["threads"])


def _step(config: Config, plan_path: Path | None, threads: int, quiet: bool) -> dict[str, float | int | None]:
    """Runs in the child process."""
    with silence(quiet):
        return _measured(config, plan_path, threads)


def _measured(config: Config, plan_path: Path | None, threads: int) -> dict[str, float | int | None]:
    import torch
    import torch.utils._pytree as pytree

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
        from monet.executor.module import MonetModule

        module = MonetModule(model, Plan.load(plan_path))
    seconds = 0.0

    def free_gradients() -> None:
        if not config.accumulate:
            model.zero_grad(set_to_none=True)
        for tensor in (*args, *kwargs.values()):
            tensor.grad = None

    kept = config.gradients == "kept"
    for _ in range(WARM_UP_STEPS + 1):
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
        seconds = time.perf_counter() - start
        peak = devices.peak_bytes(device)
        del outputs
    return dict(zip(MEASURED_FIELDS, (seconds, peak, _resident_peak_bytes()), strict=True))


def _resident_peak_bytes() -> int | None:
    """The most resident memory this process ever had. Not ``getrusage``: across exec that starts at the parent's."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
