"""Captures that are kept, in memory and on disk, so that the same step of the same model is traced once."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from monet.base.files.cache import cache_fails, read_value, write_value
from monet.base.sizes import Ranges
from monet.capture.captured import Captured
from monet.capture.captured_text import NotStorable, captured_of, captured_text
from monet.capture.effects.same_outputs import require_same_outputs
from monet.capture.guards.model_reads import held_tensors
from monet.capture.guards.module_hooks import as_planned
from monet.capture.model_key import MOST_CONSTANT_BYTES, model_key
from monet.errors import CacheRefused

logger = logging.getLogger(__name__)

_MOST_IN_MEMORY = 16
_COMPARED = "compared\n"
"""What the text of a capture begins with whose outputs are known to be the model's own."""
_in_memory: dict[str, str] = {}


def capture(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, **how: Any
) -> Captured:
    """``monet.capture.tracing.capture``, which is imported when something is traced: what it needs of torch takes as
    long to import as torch does, and a step that was captured before does not need it."""
    from monet.capture import tracing

    return tracing.capture(model, args, kwargs, **how)


@dataclass(frozen=True)
class KeptCapture:
    """``key`` and ``text``: what ``captured`` is kept under, and as; None where it is not."""

    captured: Captured
    key: str | None = None
    text: str | None = None
    on_disk: bool = True

    def require_same_outputs(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, progress: bool = False
    ) -> None:
        """``same_outputs.require_same_outputs``, once for what is kept."""
        if self.text is not None and self.text.startswith(_COMPARED):
            return
        is_known = require_same_outputs(self.captured, model, args, kwargs, progress=progress)
        if is_known and self.key is not None and self.text is not None:
            _keep(self.key, _COMPARED + self.text, on_disk=self.on_disk)


def capture_once(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, **how: Any
) -> Captured:
    """What ``kept_capture`` finds, whether or not it was compared with the model."""
    return kept_capture(model, args, kwargs, **how).captured


def kept_capture(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients_leave: bool = True,
    on_disk: bool = True,
    ranges: Ranges | None = None,
) -> KeptCapture:
    """``capture``, or what it found before for this model's code, settings and geometry on such inputs.

    ``on_disk``: read and write captures of other processes. ``ranges``: as for ``capture``; such captures are not kept.
    Raises as ``capture``.
    """
    if ranges is not None:
        return KeptCapture(capture(model, args, kwargs, gradients_leave=gradients_leave, ranges=ranges))
    with as_planned(model):
        key = model_key(model, args, kwargs or {}, gradients_leave=gradients_leave)
        text = None if key is None else _in_memory.get(key) or (_read(key) if on_disk else None)
        captured = None if text is None else _restored(text, model)
        if captured is not None:
            return KeptCapture(captured, key, text, on_disk)
        captured = capture(model, args, kwargs, gradients_leave=gradients_leave)
    # None: for tensors that no plan can hold, which tracing refuses. Islands are of the modules themselves.
    if key is None or captured.islands:
        return KeptCapture(captured)
    try:
        text = _text(captured, model)
    except NotStorable as error:
        logger.info("the capture cannot be kept: %s", error)
        return KeptCapture(captured)
    _keep(key, text, on_disk=on_disk)
    return KeptCapture(captured, key, text, on_disk)


def _keep(key: str, text: str, *, on_disk: bool) -> None:
    if on_disk:
        _write(key, text)
    _in_memory[key] = text
    while len(_in_memory) > _MOST_IN_MEMORY:
        del _in_memory[next(iter(_in_memory))]


def _text(captured: Captured, model: torch.nn.Module) -> str:
    attributes = {tensor.data_ptr(): place for place, tensor in _attributes(model)}
    constants: dict[str, Any] = {}
    # What tracing has made itself is known by its values; what is somebody's may have others at the next step.
    kept = captured.constants and {tensor.data_ptr() for tensor in held_tensors(model) if not tensor.is_meta}
    for target, tensor in captured.constants.items():
        place = attributes.get(tensor.data_ptr())
        if place is not None:
            constants[target] = {"attribute": place}
        elif tensor.data_ptr() in kept:
            raise NotStorable(f"{target} is a tensor that is held outside of the modules")
        elif tensor.nbytes <= MOST_CONSTANT_BYTES and tensor.is_contiguous() and not tensor.is_complex():
            constants[target] = {
                "values": tensor.detach().cpu().double().tolist() if tensor.is_floating_point() else tensor.tolist(),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "device": str(tensor.device),
                "shape": list(tensor.shape),
            }
        else:
            raise NotStorable(f"{target} is a constant of {tensor.nbytes} bytes that no module holds")
    try:
        return json.dumps({"constants": constants, "captured": captured_text(captured)}, allow_nan=True)
    except ValueError as error:
        raise NotStorable(str(error)) from error


def _restored(text: str, model: torch.nn.Module) -> Captured | None:
    """The capture, None where that cannot be."""
    try:
        document = json.loads(text.removeprefix(_COMPARED))
        constants: dict[str, torch.Tensor] = {}
        attributes = dict(_attributes(model)) if document["constants"] else {}
        for target, kept in document["constants"].items():
            if "attribute" in kept:
                constants[target] = attributes[kept["attribute"]]
            else:
                dtype = getattr(torch, kept["dtype"])
                values = torch.tensor(kept["values"], dtype=dtype, device=kept["device"])
                constants[target] = values.reshape(kept["shape"])
        return captured_of(document["captured"], constants)
    except (KeyError, TypeError, ValueError, AttributeError, NotStorable) as error:
        logger.info("a capture that was kept cannot be read, and is made again: %s: %s", type(error).__name__, error)
        return None


def _attributes(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Tensors that modules hold as plain attributes, by dotted name."""
    return [
        (f"{name}.{key}", value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]


def _read(key: str) -> str | None:
    try:
        return read_value("capture", key)
    except (OSError, sqlite3.Error, CacheRefused) as error:
        cache_fails(error)
        return None


def _write(key: str, text: str) -> None:
    try:
        write_value("capture", key, text)
    except (OSError, sqlite3.Error, CacheRefused) as error:
        cache_fails(error)
