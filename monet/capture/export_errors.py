"""Why a model cannot be traced, where in the user's code, and whether it fails by itself, as text for one error."""

from __future__ import annotations

import contextlib
import io
import linecache
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

from monet.capture.effects.module_changes import put_back

_OURS = str(Path(__file__).resolve().parents[1])
_NOT_THE_USERS = ("site-packages/torch/", f"{_OURS}/")
_SOURCE = re.compile(r'\s*(File "(?P<file>.+)", line (?P<line>\d+), in .+)')


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """A context that keeps off stderr what torch writes beside an error: a warning, and the graph that it got to."""
    loggers = [
        logging.getLogger(f"torch.{name}") for name in ("fx.experimental.symbolic_shapes", "_subclasses.fake_tensor")
    ]
    levels, written, report = [logger.level for logger in loggers], io.StringIO(), ""
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(written):
            yield
    except Exception as error:
        report = f"{error.partial_fx_graph}\n" if hasattr(error, "partial_fx_graph") else ""
        raise
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        sys.stderr.write(written.getvalue().replace(report, ""))  # the model's own output stays


def _is_guard(error: BaseException) -> bool:
    """Whether a branch depends on a value that tracing does not have."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # imports sympy, half a second

    return isinstance(error, GuardOnDataDependentSymNode)


_HASHED = "unhashable type: non-nested SymInt"
"""What is said where a size that depends on values is put into a set, or a dict."""
_OF_FAKES = ("Fake", "fake", "data pointer", "data_ptr", "meta tensor")
"""What an error says that a fake tensor has caused."""
_ADVICE = (
    (
        r"pack_padded_sequence|h_zeros = torch\.zeros",
        "a packed sequence has as many rows as the values of its lengths say: plan the modules around it, or leave the "
        "packing out and mask the loss",
    ),
    (
        r"layer_?drop|dropout_probability",
        "a random number decides whether a layer runs (LayerDrop): turn it off in the model's configuration "
        "(layerdrop, encoder_layerdrop and decoder_layerdrop = 0)",
    ),
    (
        r"higher_order_ops.cond|call_function cond\(",
        "torch.cond, whose branches have derivatives of their own, cannot be planned: decide in Python, or compute "
        "both and use torch.where",
    ),
    (
        r"_ctc_loss",
        "the memory of a CTC loss depends on the values of its lengths: make it a part of the model "
        "(torch.nn.CTCLoss), which runs as it is inside of the plan, or apply the loss to the module's output",
    ),
)
"""What an error says, with the code where it was raised, and a sentence for those who read it."""


def reason(what: str, error: BaseException) -> str:
    """A sentence: ``what`` happened, why, and at which line of the model, as far as ``error`` says so."""
    unknown = re.search(r"Found <class '([\w.]+)'> in output", str(error))
    if unknown is not None:
        advice = (
            "; training needs no cache of keys and values: set model.config.use_cache = False, or pass use_cache=False"
            if "Cache" in unknown[1]
            else "; return tensors in tuples, lists or dicts, or register the class with torch.utils._pytree"
        )
        return f"{what}: it returns a {unknown[1]}, whose tensors torch does not find" + advice
    lines = [line for line in str(error).splitlines() if line.strip()]
    others = [line for line in lines if not any(folder in line for folder in _NOT_THE_USERS)]
    matches = [_SOURCE.match(line) for line in others]
    places = [match for match in matches if match is not None]
    said = f"{type(error).__name__}: {lines[0] if lines else type(error).__name__}"
    guarded = _is_guard(error) or _HASHED in str(error)
    if guarded or isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        by = "" if guarded else f" ({getattr(error, 'func', '')})"
        said = f"a Python value or shape depends on the values of tensors{by}; use torch.where, or decide it elsewhere"
    # The text of a guard's error may leave the innermost lines of the model out.
    found = [match[1] for match in places]
    if not found or guarded:
        found = _places(error) or found[::-1]
    code = with_code(found[-1]) if found else ""
    shown = "\n".join((str(error), code, *_calls(error)))
    known = next((text for pattern, text in _ADVICE if re.search(pattern, shown)), said)
    return f"{what}: {known}{code}"


def _places(error: BaseException) -> list[str]:
    """The lines of the user's files that were running, as errors of torch's have them."""
    return [
        f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(folder in frame.filename for folder in _NOT_THE_USERS) and frame.line
    ]


def _calls(error: BaseException) -> list[str]:
    """The functions that were running, and the lines in them."""
    return [f"{frame.name}: {frame.line}" for frame in traceback.extract_tb(error.__traceback__)]


def with_code(place: str) -> str:
    """A line of text: the place in the user's code (``File "model.py", line 3, in forward``), and the code there."""
    match = _SOURCE.search(place)
    if match is None:
        return ""
    code = linecache.getline(match["file"], int(match["line"])).strip()
    return f"\n  at {match[1]}" + (f": {code}" if code else "")


def where(node: torch.fx.Node) -> str:
    """The last line of the user's code that made the node, if torch kept it."""
    trace: str | None = node.meta.get("stack_trace")
    if not trace:
        return ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return f" at {lines[-1]}" if lines else ""


def fails_by_itself(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
) -> bool:
    """Whether ``model``, called on tensors without memory and not traced, raises what ``error`` says. What it assigns
    meanwhile is put back."""
    if type(error).__module__ != "builtins" or any(word in str(error) for word in _OF_FAKES):
        return False
    try:
        _run_on_fakes(model, args, kwargs)
    except Exception as own:  # whatever the model raises
        return type(own) is type(error) and str(own).splitlines()[:1] == str(error).splitlines()[:1]
    return False


def _run_on_fakes(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Calls ``model`` on tensors without memory. What it assigns meanwhile is put back."""
    mode = detect_fake_mode((*args, *kwargs.values())) or FakeTensorMode(allow_non_fake_inputs=True)
    fake = partial(as_fake, mode=mode)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with put_back(model, []), mode:
        given = pytree.tree_map(fake, (tuple(args), dict(kwargs)))
        # Tied tensors stay real: torch would leave those of a module that is there twice fake.
        fakes = {name: fake(tensor) for name, tensor in tensors.items()}
        with without_reports():
            torch.func.functional_call(model, fakes, *given, tie_weights=False)


def as_fake(value: Any, mode: FakeTensorMode) -> Any:
    """A tensor without its memory; what is none, or has none, as it is."""
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return mode.from_tensor(value) if is_real else value
