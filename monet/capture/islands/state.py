"""What a call of a model leaves behind, put back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout

import torch

from monet.capture.guards.module_changes import put_back


@contextmanager
def same_buffers(module: torch.nn.Module) -> Iterator[None]:
    """A context after which the buffers are those of before, with the values of before."""
    held = [(of, dict(of)) for of in (part._buffers for part in module.modules())]
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for of, members in held:
            of.clear()
            of.update(members)
        with torch.no_grad():
            for buffer, before in values:
                buffer.copy_(before)


@contextmanager
def as_before(model: torch.nn.Module) -> Iterator[None]:
    """A context after which the model's buffers and attributes and torch's generator are as before it."""
    written = io.StringIO()  # the trace has written the same
    with ExitStack() as stack:
        for context in (redirect_stdout(written), redirect_stderr(written), same_buffers(model), put_back(model, [])):
            stack.enter_context(context)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        yield
