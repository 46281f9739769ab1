"""Costs as they are in a step: between other operators, in its arena, by the runner that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from monet.base.measurement import Measurement
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.profiling import Profile, implementations
from monet.ops.measuring.signature import signature


def as_in_step(profile: Profile, catalogue: Catalogue, seconds: Mapping[str, Sequence[float]]) -> Profile:
    """``profile`` with the times that steps took: ``seconds`` by signature, of each step that ran it.

    What did not run is as much slower or faster than alone as what ran of the same operator, by the median; where none
    of that ran, as all that ran.
    """
    factors: dict[str, list[float]] = {}
    runs = {signature(run, catalogue.values): run for run in implementations(catalogue)}
    for key, taken in seconds.items():
        alone_s = profile.measurements[key].time_s if key in runs else 0.0
        if alone_s > 0:
            factors.setdefault(runs[key].call_name, []).append(mean(taken) / alone_s)
    usual = median([factor for each in factors.values() for factor in each] or [1.0])

    def corrected(key: str, measured: Measurement) -> Measurement:
        if key in seconds:
            return replace(measured, time_s=mean(seconds[key]))
        of_operator = factors.get(runs[key].call_name) if key in runs else None
        return replace(measured, time_s=measured.time_s * (usual if of_operator is None else median(of_operator)))

    found = {key: corrected(key, measured) for key, measured in profile.measurements.items()}
    return replace(profile, measurements=found)
