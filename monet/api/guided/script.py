"""The steps of a script that nobody wants to edit, and running one over a profile-guided arena."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from monet.api.guided.arena import ProfileGuidedArena


@contextmanager
def steps_of_optimizers(arena: ProfileGuidedArena) -> Iterator[None]:
    """Inside, each step begins with the first forward pass of a module in training mode, gradients enabled, and ends
    when an optimiser has stepped. Evaluation and the loading of data are between steps.

    Where several optimisers take turns, as in a GAN, steps are of one kind that follow the same one.
    """
    optimizers: dict[int, int] = {}  # in order of their first steps
    open_in: int | None = None
    kind = 0
    step: Any = None

    def before_forward(module: torch.nn.Module, _inputs: Any) -> None:
        nonlocal open_in, step
        if torch.compiler.is_compiling():
            return  # what is traced now is called later
        if open_in is None and module.training and torch.is_grad_enabled():
            open_in, step = threading.get_ident(), arena.step(kind)
            step.__enter__()

    def after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal open_in, kind
        if torch.compiler.is_compiling():
            return
        if open_in == threading.get_ident():
            open_in = None
            step.__exit__(None)
            kind = optimizers.setdefault(id(optimizer), len(optimizers))

    hooks = [register_module_forward_pre_hook(before_forward), register_optimizer_step_post_hook(after_step)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        if open_in == threading.get_ident():
            step.__exit__(RuntimeError)  # the last one had no optimiser's step: it has taught nothing


def run_script(script: Path, arguments: Sequence[str], arena: ProfileGuidedArena) -> None:
    """Run a Python file as ``python FILE ARGUMENTS`` would, its training steps over ``arena``; ``sys.argv`` and
    ``sys.path`` are as before afterwards. What the script raises, ``SystemExit`` included, is raised."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with steps_of_optimizers(arena):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
