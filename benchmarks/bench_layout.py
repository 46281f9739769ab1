"""Layout on published instances: ours, the heuristics that papers compare with, and the package omnimalloc.

python benchmarks/bench_layout.py [--instances FOLDER] [--only A --only somas_resnet50]

The instances (google/minimalloc's hard set, and traces of MindSpore) are not part of this project. omnimalloc
(``pip install omnimalloc``) is not needed, and left out where it is missing: ``supermalloc`` is its exact search with
the same time limit, ``omni`` its default, a portfolio of heuristics. It uses every core; ours uses one.

The methods take turns on one instance after another, in one process, each time another one first. All offsets are
multiples of 1 byte, and every layout is checked here for buffers that overlap.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
import record
from instances import instances_option

from monet.planner.layout import Lifetime, exact_search, layout
from monet.planner.layout.document import load_lifetimes
from monet.planner.layout.lifetimes import pieces_of

HARD_LIMIT_S, TRACE_LIMIT_S, LONG_TRACE_LIMIT_S = 30.0, 20.0, 60.0
"""For instances with a capacity; for traces; for traces of more than ``LONG_TRACE`` buffers."""
LONG_TRACE = 5000


@dataclass(frozen=True, slots=True)
class Case:
    """One instance. ``capacity_bytes``: from the file's name, or None. ``load_bytes``: no layout is smaller."""

    name: str
    lifetimes: Sequence[Lifetime]
    capacity_bytes: int | None
    load_bytes: int
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Found:
    """``bound_bytes``: proven by the method; the load where it proves nothing."""

    offsets: Sequence[int]
    bound_bytes: int


Method = Callable[[Case], Found]


def _ours(method: str) -> Method:
    def run(case: Case) -> Found:
        found = layout(case.lifetimes, alignment=1, time_limit_s=case.time_limit_s, method=method)
        if found.interrupted:
            raise KeyboardInterrupt
        return Found(found.offsets, found.bound_bytes)

    return run


def _omnimalloc() -> dict[str, Method]:
    """Those of the package, or none where it is not installed."""
    try:
        import omnimalloc
        from omnimalloc.allocators import OmniAllocator, SupermallocAllocator
    except ImportError as error:
        click.echo(f"omnimalloc is left out: {error}; pip install omnimalloc", err=True)
        return {}

    def given(case: Case) -> tuple[Any, ...]:
        return tuple(
            omnimalloc.Allocation(id=life.id, size=life.bytes, start=life.begin, end=life.end)
            for life in case.lifetimes
        )

    def offsets(case: Case, placed: Sequence[Any]) -> list[int]:
        by_id = {one.id: int(one.offset) for one in placed}
        return [by_id[life.id] for life in case.lifetimes]

    def supermalloc(case: Case) -> Found:
        result = SupermallocAllocator(timeout=case.time_limit_s).solve(given(case))
        return Found(offsets(case, result.allocations), result.peak if result.proved_optimal else result.lower_bound)

    def omni(case: Case) -> Found:
        return Found(offsets(case, OmniAllocator().allocate(given(case))), case.load_bytes)

    return {"omnimalloc supermalloc": supermalloc, "omnimalloc omni": omni}


def _load(path: Path, time_limit_s: float | None) -> Case:
    lifetimes = load_lifetimes(path)
    last = path.stem.rpartition(".")[2]
    capacity = int(last) if last.isdigit() else None
    own = HARD_LIMIT_S if capacity is not None else TRACE_LIMIT_S
    if len(lifetimes) > LONG_TRACE:
        own = LONG_TRACE_LIMIT_S
    load = pieces_of(lifetimes, 1).bound()
    return Case(path.stem, lifetimes, capacity, load, own if time_limit_s is None else time_limit_s)


def _run(case: Case, name: str, method: Method) -> dict[str, Any]:
    start = time.perf_counter()
    found = method(case)
    seconds = time.perf_counter() - start
    arena = _arena(case, name, found.offsets)
    if not case.load_bytes <= found.bound_bytes <= arena:
        raise RuntimeError(f"{case.name}: {name} has a bound of {found.bound_bytes} bytes for an arena of {arena}")
    return {
        "method": name,
        "arena_bytes": arena,
        "bound_bytes": found.bound_bytes,
        "ratio": arena / case.load_bytes,
        "seconds": seconds,
        "fits": None if case.capacity_bytes is None else arena <= case.capacity_bytes,
    }


def _arena(case: Case, name: str, offsets: Sequence[int]) -> int:
    """The end of the highest buffer. Raises ``RuntimeError`` where two overlap."""
    lives = case.lifetimes
    begin, end, size = (np.array([getattr(life, what) for life in lives]) for what in ("begin", "end", "bytes"))
    low = np.array(offsets)
    top = low + size
    for n in range(len(lives) - 1):
        rest = slice(n + 1, None)
        both = (begin[rest] < end[n]) & (end[rest] > begin[n]) & (low[rest] < top[n]) & (top[rest] > low[n])
        if both.any() or low[n] < 0:
            raise RuntimeError(f"{case.name}: {name} lays buffer {lives[n].id} where another one or nothing is")
    return int(top.max())


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, a line for each instance and method."""
    lines = [
        "| instance | buffers | method | arena, bytes | of the load | proven bound | seconds | fits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for n, found in enumerate(row["methods"]):
            head = f"| {row['name']} | {row['buffers']:,} " if n == 0 else "| | "
            fits = {None: "–", True: "yes", False: "no"}[found["fits"]]
            lines.append(
                f"{head}| {found['method']} | {found['arena_bytes']:,} | {found['ratio']:.4f} | "
                f"{found['bound_bytes']:,} | {found['seconds']:.2f} | {fits} |"
            )
    return "\n".join(lines)


@click.command()
@instances_option("layout")
@click.option("--only", multiple=True, help="Only instances whose names begin like this; writes no file.")
@click.option("--time-limit", type=float, help="Seconds for each instance and method, in place of each one's own.")
def main(instances: Path, only: tuple[str, ...], time_limit: float | None) -> None:
    paths = sorted((instances / "layout").glob("*.csv"))
    if not paths:
        raise click.UsageError(f"no instances in {instances / 'layout'}; give --instances or set MONET_INSTANCES")
    chosen = [path for path in paths if not only or path.stem.startswith(only)]
    if not chosen:
        raise click.UsageError(f"no instance is called {' or '.join(only)}: {', '.join(path.stem for path in paths)}")
    if not exact_search.available():  # also builds it, which is not to be timed
        raise click.ClickException("no C++ compiler: without the exact search this would measure something else")
    methods: dict[str, Method] = {
        "monet": _ours("auto"),
        "long-lived-first": _ours("long-lived-first"),
        "first-fit-by-size": _ours("first-fit-by-size"),
        **_omnimalloc(),
    }
    peer = version("omnimalloc") if len(methods) > 3 else None
    rows: list[dict[str, Any]] = []

    def save(complete: bool) -> None:
        if not only:
            path = record.write(
                "layout", {"omnimalloc": peer, "cores": os.cpu_count(), "complete": complete, "instances": rows}
            )
            if complete:
                click.echo(f"wrote {path}")

    names = list(methods)
    for turn, path in enumerate(chosen):
        case = _load(path, time_limit)
        first = turn % len(names)
        found = {name: _run(case, name, methods[name]) for name in (*names[first:], *names[:first])}
        rows.append(
            {
                "name": case.name,
                "buffers": len(case.lifetimes),
                "capacity_bytes": case.capacity_bytes,
                "load_bytes": case.load_bytes,
                "time_limit_s": case.time_limit_s,
                "methods": [found[name] for name in names],
            }
        )
        click.echo(f"{case.name}: " + ", ".join(f"{name} {found[name]['ratio']:.4f}" for name in names), err=True)
        save(complete=False)  # minutes of work: what ends it early loses one instance
    click.echo(_table(rows))
    save(complete=True)


if __name__ == "__main__":
    main()
