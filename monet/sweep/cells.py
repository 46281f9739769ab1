"""What a sweep is about: its source and options, the step that is planned, cells and what came of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monet.errors import ConfigError

if TYPE_CHECKING:
    from monet.config import Config

FORMAT = 1
"""Of the files that a sweep keeps; files of another format are made again."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is planned: a configuration's model on this machine, or a published profile.

    Exactly one of ``config`` and ``profile`` is there. ``digest``: SHA-256 of its content as it was read.
    """

    name: str
    digest: str
    config: Config | None = None
    profile: Path | None = None

    @classmethod
    def of_config(cls, path: str) -> Source:
        """The configuration at ``path``, or shipped under that name. Raises ``ConfigError``."""
        from monet.config import load_config

        config = load_config(path)
        return cls(Path(path).stem, _sha256(config.model_dump_json()), config=config)

    @classmethod
    def of_profile(cls, path: Path) -> Source:
        """The ``monet-profile-1`` document at ``path``. Raises ``ConfigError``."""
        from monet.planner.published import load_published

        # The problem, too: how a profile is read is part of what is planned.
        problem = repr(load_published(path)).encode()
        return cls(path.stem, hashlib.sha256(path.read_bytes() + problem).hexdigest(), profile=path.absolute())


@dataclass(frozen=True, slots=True)
class Options:
    """How every cell is planned; see ``monet.api.prepare`` and ``plan_prepared``.

    ``threads``: None is PyTorch's own number. ``storage``: compressed storages that some variant uses,
    with room for a share ``density`` of non-zero values.
    """

    window: int | None = None
    time_limit_s: float = 60.0
    gap: float = 0.01
    solver: str = "HIGHS"
    threads: int | None = None
    reserve_bytes: int = 0
    exact: bool = False
    storage: tuple[str, ...] = ()
    density: float = 0.75


@dataclass(frozen=True, slots=True)
class Step:
    """The step that is planned, as PyTorch runs it: everything kept, default implementations.

    ``problem``: SHA-256 of the planner's problem, costs included. ``memory_bytes``: what is in memory at every
    run of an operator, the first ``forward_moments`` of them in the forward pass.
    """

    name: str
    problem: str
    baseline_s: float
    baseline_peak_bytes: int
    fixed_bytes: int
    memory_bytes: tuple[int, ...]
    forward_moments: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One variant (as labelled in a sweep) under one budget."""

    variant: str
    budget_bytes: int

    def __str__(self) -> str:
        return f"{self.variant} at {self.budget_bytes} bytes"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell. ``problem``: of the step that it was planned for (``Step.problem``).

    ``status``: a solution's, or ``infeasible`` (no plan fits, or none was found in time; ``smallest_bytes``: the
    smallest budget known to work), or ``error``; the last two have a ``message``. ``bound_s``, ``gap`` and
    ``bound_scope`` are None where nothing was proven. ``to_gap_s``: gap in percent → seconds until it was reached.
    ``arena_bytes``: None for a profile, which has no lifetimes of buffers to lay out. ``made_on``: processor and
    versions.
    """

    status: str
    problem: str
    message: str | None = None
    smallest_bytes: int | None = None
    objective_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    bound_scope: str | None = None
    peak_bytes: int | None = None
    arena_bytes: int | None = None
    build_s: float | None = None
    solve_s: float | None = None
    to_gap_s: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: tuple[int, ...] = ()
    forward_moments: int = 0
    made_on: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planned(self) -> bool:
        return self.objective_s is not None


def step_content(step: Step) -> dict[str, Any]:
    return asdict(step)


def step_of(content: Mapping[str, Any]) -> Step:
    """Raises ``TypeError`` where fields are missing or unknown."""
    _same_fields(Step, content)
    return Step(**{**content, "memory_bytes": tuple(content["memory_bytes"])})


def outcome_content(outcome: Outcome) -> dict[str, Any]:
    content = asdict(outcome)
    content["to_gap_s"] = {str(percent): seconds for percent, seconds in outcome.to_gap_s.items()}
    return content


def outcome_of(content: Mapping[str, Any]) -> Outcome:
    """Raises ``TypeError`` where fields are missing or unknown."""
    _same_fields(Outcome, content)
    return Outcome(
        **{
            **content,
            "to_gap_s": {int(percent): seconds for percent, seconds in content["to_gap_s"].items()},
            "memory_bytes": tuple(content["memory_bytes"]),
        }
    )


def source_key(source: Source, options: Options, machine: Mapping[str, Any]) -> str:
    """Names the step: equal for equal content, and for a model equal machine, threads and PyTorch.

    A profile was measured elsewhere: planning it gives the same problem on every machine.
    """
    parts: dict[str, Any] = {"format": FORMAT, "monet": version("monet-planner"), "source": source.digest}
    if source.config is not None:
        parts |= {"machine": machine, "threads": options.threads, "exact": options.exact}
        parts |= {"reserve_bytes": options.reserve_bytes}
    return _sha256(json.dumps(parts, sort_keys=True))


def cell_key(source: str, options: Options, cell: Cell) -> str:
    """Names a cell of the step that ``source`` (a :func:`source_key`) names."""
    parts = {"step": source, "cell": asdict(cell), "options": asdict(options)}
    return _sha256(json.dumps(parts, sort_keys=True))


def check_options(source: Source, options: Options) -> None:
    """Refuse, with ``ConfigError``, what only planning a model can do."""
    if source.profile is None:
        return
    asked = [name for name, given in (("--reserve", options.reserve_bytes), ("--exact", options.exact)) if given] + (
        ["--threads"] if options.threads is not None else []
    )
    if asked:
        raise ConfigError(f"{', '.join(asked)}: for a model's configuration; a profile was measured elsewhere")


def _same_fields(kind: type[Any], content: Mapping[str, Any]) -> None:
    if set(content) != {f.name for f in fields(kind)}:
        raise TypeError(f"not the fields of {kind.__name__}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
