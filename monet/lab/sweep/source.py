"""What a sweep plans, with which options, and the keys under which its cells are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monet.errors import ConfigError

if TYPE_CHECKING:
    from monet.models.config import Config
from monet.lab.sweep.cells import Cell

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
        from monet.models.config import load_config

        config = load_config(path)
        return cls(Path(path).stem, _sha256(config.model_dump_json()), config=config)

    @classmethod
    def of_profile(cls, path: Path) -> Source:
        """The ``monet-profile-1`` document at ``path``. Raises ``ConfigError``."""
        from monet.planner.published.profile import load_published

        # The problem, too: how a profile is read is part of what is planned.
        problem = repr(load_published(path)).encode()
        return cls(path.stem, hashlib.sha256(path.read_bytes() + problem).hexdigest(), profile=path.absolute())


@dataclass(frozen=True, slots=True)
class Options:
    """How every cell is planned; see ``monet.pipeline.preparation.prepare`` and ``plan_prepared``.

    ``threads``: None is PyTorch's own number. ``storage``: compressed storages that some variant uses,
    with room for a share ``density`` of non-zero values. ``offload``: a second memory, as ``parse_offload`` takes it.
    ``cores``: of the search of a cell, at most. ``fused``: with regions that PyTorch's compiler has kernels for.
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
    offload: str | None = None
    cores: int | None = None
    fused: bool = False


def source_key(source: Source, options: Options, machine: Mapping[str, Any]) -> str:
    """Names the step: equal for equal content, and for a model equal machine, threads and PyTorch.

    A profile was measured elsewhere: planning it gives the same problem on every machine.
    """
    parts: dict[str, Any] = {"format": FORMAT, "monet": version("monet-planner"), "source": source.digest}
    if source.config is not None:
        parts |= {"machine": machine, "threads": options.threads, "exact": options.exact}
        parts |= {"reserve_bytes": options.reserve_bytes}
        parts |= {"fused": True} if options.fused else {}
    return _sha256(json.dumps(parts, sort_keys=True))


def cell_key(source: str, options: Options, cell: Cell) -> str:
    """Names a cell of the step that ``source`` (a :func:`source_key`) names."""
    parts = {"step": source, "cell": asdict(cell), "options": asdict(options)}
    return _sha256(json.dumps(parts, sort_keys=True))


def check_options(source: Source, options: Options) -> None:
    """Refuse, with ``ConfigError``, what only planning a model can do."""
    if source.profile is None:
        return
    of_models = {
        "--reserve": options.reserve_bytes > 0,
        "--exact": options.exact,
        "--fused": options.fused,
        "--threads": options.threads is not None,
    }
    asked = [name for name, given in of_models.items() if given]
    if asked:
        raise ConfigError(f"{', '.join(asked)}: for a model's configuration; a profile was measured elsewhere")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
