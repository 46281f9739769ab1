"""A prepared step as a file, to be planned on another machine: its operators with all that was measured of them.

What plans are made of is in the file; neither the model nor a device like the one that it was measured on is needed to
plan. The plan runs where it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monet.base.files.frozen_json import Unreadable, decode, encode
from monet.base.files.step_file import read_step_file, write_step_file
from monet.base.measurement import Measurement
from monet.capture.captured_text import NotStorable, graph_data, graph_of
from monet.errors import CaptureError, ConfigError, ProfileError
from monet.ops.catalogue import catalogue
from monet.ops.measuring.profiling import Profile, implementations
from monet.ops.offers.implementation import Guard
from monet.ops.offers.offering import Offering
from monet.pipeline.preparation import Prepared, prepared_step


def write_step(prepared: Prepared, offering: Offering, path: Path) -> None:
    """Write a step that was prepared for ``offering``; ``Preparing.reserve_bytes`` is left to whoever plans.

    Raises ``CaptureError`` where an operator of the model has no form as text, and ``OSError``.
    """
    lowered, offers = prepared.lowered, prepared.lowered.catalogue
    guards = {run.guard for run in implementations(offers) if run.guard is not None}
    measured = lowered.profile.restricted(offers).measurements
    try:
        graph = graph_data(offers.graph)
    except NotStorable as error:
        raise CaptureError(f"the step cannot be written: {error}") from error
    write_step_file(
        path,
        {
            "model": dict(prepared.model),
            "environment": dict(prepared.environment),
            "offering": {**asdict(offering), "storage": sorted(offering.storage)},
            "guards": sorted(([g.scale, g.shift, g.least] for g in guards), key=str),
            "graph": graph,
            "measurements": {key: encode(value, Measurement) for key, value in measured.items()},
        },
    )


def read_step(path: Path, reserve_bytes: int = 0) -> Prepared:
    """The step that was written there. Raises ``ConfigError``, also where this monet knows other kernels."""
    document = read_step_file(path)
    try:
        return _prepared(document, reserve_bytes)
    except ProfileError as error:
        raise ConfigError(f"{path}: {error}; write it again with this monet (monet profile)") from error
    except (NotStorable, Unreadable, KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise ConfigError(f"{path} is no step that can be planned here: {type(error).__name__}: {error}") from error


def _prepared(document: Mapping[str, Any], reserve_bytes: int) -> Prepared:
    graph, offering = graph_of(document["graph"]), _offering(document["offering"])
    offers = catalogue(graph, offering, scales=_scales(document["guards"]))
    measurements = {key: decode(text, Measurement) for key, text in document["measurements"].items()}
    environment, model = document["environment"], document["model"]
    profile = Profile(environment["profile"], measurements, 0).restricted(offers)
    return prepared_step(offers, profile, model, environment, beside={"reserve": reserve_bytes})


def _offering(data: Mapping[str, Any]) -> Offering:
    return Offering(**{**data, "storage": frozenset(data["storage"])})


def _scales(guards: list[list[Any]]) -> Callable[[Guard], float]:
    """What was large enough to divide by where it was measured still is: each step checks it anyway."""
    known = {tuple(guard) for guard in guards}
    return lambda guard: float("inf") if (guard.scale, guard.shift, guard.least) in known else 0.0
