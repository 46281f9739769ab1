"""Where the steps of a plan come from and what they take, which a plan file does not have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monet.errors import ConfigError
from monet.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Origins:
    """By step: ``lines``, the line of the model each comes from, and ``modules``, whose parameters it reads or which it
    comes after (empty: unknown); ``predicted_s`` and ``measured_s``, its seconds. Each of them is empty where nothing
    is known of any step."""

    lines: tuple[str, ...] = ()
    predicted_s: tuple[float, ...] = ()
    measured_s: tuple[float, ...] = ()
    modules: tuple[str, ...] = ()

    def line(self, step: int) -> str:
        return self.lines[step] if self.lines else ""

    def module(self, step: int) -> str:
        return self.modules[step] if self.modules else ""


UNKNOWN = Origins()


def read_trace(path: Path, plan: Plan) -> Origins:
    """What ``monet trace --json`` wrote of this plan. Raises ``ConfigError`` where it is of another, or is none."""
    try:
        steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
        named = [(step["kind"], step["node"], step["implementation"]) for step in steps]
        origins = Origins(
            tuple(_line(step["where"]) for step in steps),
            tuple(float(step["predicted_s"]) for step in steps),
            tuple(float(step["measured_s"]) for step in steps),
        )
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"{path}: not a file that `monet trace --json` wrote: {why}") from error
    expected = [(step.kind, step.node, step.implementation) for step in plan.steps]
    if named != expected:
        different = next((k for k, (a, b) in enumerate(zip(named, expected, strict=False)) if a != b), None)
        where = f"{len(named)} steps, not {len(expected)}" if different is None else f"another step {different}"
        raise ConfigError(f"{path}: is a trace of another plan, with {where}: run `monet trace` with this plan")
    return origins


def _line(where: Any) -> str:
    if not isinstance(where, str):
        raise TypeError(f"where is {where!r:.80}")
    return where.strip().removeprefix("at ")
