"""The directive ``measurements``: a table of one record under ``benchmarks/results``, so that no number is copied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Row = tuple[str, ...]
"""Texts of the cells; the first row of a table is its heading."""


def _share(number: float | None) -> str:
    return "–" if number is None else f"{100 * number:.1f} %"


def _overhead(plan: Mapping[str, Any] | None) -> str:
    return "–" if plan is None else f"{100 * plan['overhead']:+.0f} %"


def step_times(result: Any) -> Iterable[Row]:
    yield "model", "batch", "eager", "planned", "ratio"
    models = {name: row for name, row in result.items() if "eager_s" in row}  # not the check before a step
    for model, row in models.items():
        batch = str(row["shape"][0]) if row["shape"] else "8"
        yield model, batch, f"{row['eager_s']:.3f} s", f"{row['planned_s']:.3f} s", f"{row['ratio']:.2f}"


def whole_steps(result: Any) -> Iterable[Row]:
    yield "step", "budget, of eager's peak", "promised bytes", "measured bytes", "time, of eager's"
    for row in result:
        share = _share(row["share"])
        if row.get("measured_bytes") is None:
            yield row["case"], share, "infeasible", "–", "–"
        else:
            yield (
                row["case"], share, f"{row['promised_bytes']:,}", f"{row['measured_bytes']:,}", f"{row['ratio']:.2f}",
            )  # fmt: skip


def models(result: Any) -> Iterable[Row]:
    shares = ("70%", "50%", "40%")
    yield "model", "batch", "smallest budget, of eager's peak", *(f"overhead at {share}" for share in shares), "commit"
    for model, row in result.items():
        plans = row["plans"]
        least = plans["smallest"]["measured_peak_bytes"] / row["eager"]["allocator_peak_bytes"]
        found = (_overhead(plans[share]) if share in plans else "not run" for share in shares)
        yield model, str(row["batch"]), _share(least), *found, row["commit"].rstrip("+")


def memory_budget(result: Any) -> Iterable[Row]:
    """PyTorch's ``activation_memory_budget`` and plans under the same shares, side by side."""
    yield "model", "method", "asked for", "peak, of eager's", "time, of eager's"
    eager = {run["model"]: run["peak_bytes"] for run in result["runs"] if run["method"] == "eager"}
    names = {"memory_budget": "`activation_memory_budget`", "monet": "monet", "checkpoint": "`checkpoint`"}
    for run in result["runs"]:
        if run["method"] in names and run.get("peak_bytes"):
            asked = "" if run["asked"] is None else _share(run["asked"])
            peak = _share(run["peak_bytes"] / eager[run["model"]])
            yield run["model"], names[run["method"]], asked, peak, f"{run['time_ratio']:.2f}"


def curves(result: Any) -> Iterable[Row]:
    """Every contestant of every network; what does not run is left out."""
    yield "network", "contestant", "asked for", "peak, of eager's", "time, of eager's"
    for network, runs in result.items():
        eager = next(run["peak_bytes"] for run in runs if run["contestant"] == "eager")
        for run in runs:
            if "time_ratio" in run:
                asked = "" if run["asked"] is None else f"{run['asked']:g}"
                yield network, run["contestant"], asked, _share(run["peak_bytes"] / eager), f"{run['time_ratio']:.2f}"


def beside_peers(result: Any) -> Iterable[Row]:
    """Each run of a peer's, and the fastest plan of at most its peak."""
    yield "network", "contestant", "peak, of eager's", "time, of eager's", "a plan's peak", "a plan's time"
    for network, runs in result.items():
        ran = [run for run in runs if "time_ratio" in run]
        eager = next(run["peak_bytes"] for run in ran if run["contestant"] == "eager")
        plans = [run for run in ran if run["contestant"] in ("monet", "unlimited")]
        for run in ran:
            if run["contestant"] in ("eager", "monet", "unlimited", "optimize"):
                continue
            asked = "" if run["asked"] is None else f" {run['asked']:g}"
            fitting = [plan for plan in plans if plan["peak_bytes"] <= run["peak_bytes"]]
            best = min(fitting, key=lambda plan: float(plan["time_ratio"]), default=None)
            yield (
                network, run["contestant"] + asked, _share(run["peak_bytes"] / eager), f"{run['time_ratio']:.2f}",
                "–" if best is None else _share(best["peak_bytes"] / eager),
                "–" if best is None else f"{best['time_ratio']:.2f}",
            )  # fmt: skip


def guided(result: Any) -> Iterable[Row]:
    """The profile-guided arena beside eager under three allocators of the C library."""
    libraries = ("jemalloc", "tcmalloc")
    yield (
        "steps", "time, of eager's", "resident peak: eager", "guided", *libraries, "moved or missed", "plans", "layout",
    )  # fmt: skip
    for name, row in result.items():
        if "error" in row["pairs"] or "error" in row["guided"] or "error" in row["eager"]:
            continue
        report = row["guided"]["report"]
        eager, arena, *others = (row.get(of, {}).get("resident_peak_bytes") for of in ("eager", "guided", *libraries))
        yield (
            name, f"{row['pairs']['ratio']:.2f}", *(_megabytes(count) for count in (eager, arena, *others)),
            _share((report.get("moved", 0) + report["missed"]) / max(1, report["requests"])), str(report["plans"]),
            f"{report['layout_s']:.2f} s",
        )  # fmt: skip


def offload(result: Any) -> Iterable[Row]:
    """Models over a disk: what recomputation alone needs beside plans with moves, predicted and measured."""
    yield (
        "model", "budget", "recomputed only", "with moves", "gap", "moved", "hidden", "time, of eager's",
        "that, of predicted", "peak, of promised",
    )  # fmt: skip
    for model, cells in result.get("disk", {}).items():
        for budget, cell in cells.items():
            if "both" not in cell:
                continue
            alone, both = cell["recompute"], cell["both"]
            without = "no plan" if "refused" in alone else f"{alone['overhead']:+.1%}"
            if "refused" in both:
                yield model, budget, without, "no plan", *("",) * 6
                continue
            second, pairs, memory = both["second_memory"], cell["pairs"], cell["memory"]
            peak = memory.get("allocator_peak_bytes")
            copied = second["written_bytes"] + second["read_bytes"]
            yield (
                model, budget, without, f"{both['overhead']:+.1%}",
                "–" if both["gap"] is None else f"{both['gap']:.1%}", _megabytes(second["moved_bytes"]),
                _share(second["hidden_bytes"] / copied) if copied else "–",
                f"{pairs['time_ratio']:.2f}" if "time_ratio" in pairs else "–",
                f"{pairs['time_ratio'] / (1 + both['overhead']):.2f}" if "time_ratio" in pairs else "–",
                "–" if peak is None else f"{peak / both['peak_bytes']:.4f}",
            )  # fmt: skip


def offload_smallest(result: Any) -> Iterable[Row]:
    """The smallest budgets of models by recomputation alone and with moves to a disk, of eager's peak."""
    yield (
        "model", "recomputed only", "bound", "overhead", "with moves", "bound", "overhead", "moved",
        "time, of eager's",
    )  # fmt: skip
    for model, cell in result.get("smallest", {}).items():
        if "both" not in cell:
            continue
        alone, both, eager_bytes = cell["recompute"], cell["both"], cell["eager_peak_bytes"]
        sides = [
            (
                _share(side["peak_bytes"] / eager_bytes),
                _share(side["bound_bytes"] / eager_bytes),
                f"{side['overhead']:+.0%}",
            )
            for side in (alone, both)
        ]
        pairs = cell.get("pairs", {})
        yield (
            model, *sides[0], *sides[1], _megabytes(both["second_memory"]["moved_bytes"]),
            f"{pairs['time_ratio']:.2f}" if "time_ratio" in pairs else "–",
        )  # fmt: skip


def state(result: Any) -> Iterable[Row]:
    """Parameters and state that are larger than memory."""
    head = ["decoder", "parameters", "gradients and state with them", "budget", "in steps, of the promise", "resident"]
    yield [*head, "s a step", "predicted", "bound", "without moves"]
    for name, found in result.items():
        last = found["steps"][1:]
        seconds = sorted(row["seconds"] for row in last)[len(last) // 2]
        most = max(row["step_bytes"] for row in last)
        resident = max(row["resident_bytes"] for row in last)
        yield [
            name, f"{found['parameters'] / 1e6:.0f} M", f"{found['state_bytes'] / 1e9:.2f} GB",
            f"{found['budget_bytes'] / 1e9:.2f} GB", f"{most - found['promised_peak_bytes']:+d} bytes",
            f"{resident / 1e9:.2f} GB", f"{seconds:.2f}", f"{found['objective_s']:.2f}", f"{found['bound_s']:.2f}",
            f"{found['baseline_s']:.2f}",
        ]  # fmt: skip


def offload_published(result: Any) -> Iterable[Row]:
    """One profile under budgets and bandwidths, by each part of the program and by all of it."""
    yield "budget", "bandwidth each way", "recomputation", "moves", "both", "bound", "moved", "recomputed"
    for row in result.get("published", []):
        yield (
            f"{row['budget_gib']:g} GiB", f"{row['rate_gb']:g} GB/s",
            *("–" if row[of] is None else f"{row[of] * 1e3:.1f} ms" for of in ("recompute_s", "move_s", "both_s")),
            f"{row['bound_s'] * 1e3:.1f} ms", str(row["moved"]), str(row["recomputed"]),
        )  # fmt: skip


def beside_compile(result: Any) -> Iterable[Row]:
    """``torch.compile``'s runs, and the plans for the peak of each; eager first."""
    head = ["network", "contestant", "peak, of eager's", "time, of eager's", "a plan at that peak"]
    yield *head, "with fused regions", "that by the contestant's, in one process"
    for network, runs in result.items():
        eager_bytes = next(run["peak_bytes"] for run in runs if run["contestant"] == "eager")
        for run in runs:
            if run["contestant"] in ("monet", "fused") or "time_ratio" not in run:
                continue
            asked = "" if run["asked"] is None else f", budget {run['asked']}"
            ratios = [run.get(f"{kind}_time_ratio") for kind in ("monet", "fused")]
            ratios.append(run.get("fused_by_it", {}).get("ratio"))
            yield (
                network, run["contestant"] + asked, _share(run["peak_bytes"] / eager_bytes), f"{run['time_ratio']:.3f}",
                *("–" if ratio is None else f"{ratio:.3f}" for ratio in ratios),
            )  # fmt: skip


def regions(result: Any) -> Iterable[Row]:
    """Groups of fused operators that take a hundredth of eager's step by aten, and what was chosen without a limit."""
    yield "network", "pass, and the calls of a region", "regions", "aten's calls", "one kernel", "chosen"
    for network, found in result.items():
        for calls, group in found["groups"].items():
            offered = list(group["implementations"].values())  # PyTorch's own first, where it is offered
            fused = min(each["ms"] for each in offered if each["compiled"])
            aten = None if offered[0]["compiled"] else offered[0]["ms"]
            if max(fused, aten or 0.0) < 0.01 * found["eager_ms"]:
                continue
            chosen = ", ".join(f"{count} × {name}" for name, count in group["chosen"]["without a limit"].items())
            by_aten = "–" if aten is None else f"{aten:.1f} ms"
            yield network, calls, str(group["runs"]), by_aten, f"{fused:.1f} ms", chosen


def estimates(result: Any) -> Iterable[Row]:
    """Estimated less measured: eager's peak, and the overhead that differs most, over the shares that have plans."""
    yield "model", "eager's peak", "overheads, largest difference", "shares compared"
    for model, row in result["models"].items():
        found = row["differences"]
        points = found["overhead_points"].values()
        yield (
            model,
            f"{found['eager_peak']:+.2%}",
            f"{max(points, key=abs):+.1f} points",
            ", ".join(found["overhead_points"]),
        )


def loops(result: Any) -> Iterable[Row]:
    """What loops do with gradients: whether they are eager's, and the peak of five steps beside the promise."""
    yield "the loop", "gradients and weights are eager's", "promise", "measured less promised", "told"
    for loop, row in result.items():
        if "error" in row:
            continue
        equal = "bit by bit" if row["equal"] else "no"
        told = f"once: {row['told'][0].split(':')[0]}" if row["told"] else "nothing"
        yield loop, equal, f"{row['promised_bytes']:,}", f"{row['above_bytes']:+,}", told


def parallel_steps(result: Any) -> Iterable[Row]:
    """Steps of two processes, and what of them is left to wait for once the last gradient is there."""
    yield "model", "parameters", "buckets", "eager", "planned", "exposed: eager", "planned", "planned, all at once"
    for model, row in result.items():
        eager, planned, at_once = (row[mode] for mode in ("eager", "planned", "at_once"))
        yield (
            model, _megabytes(row["parameter_bytes"]), str(row["buckets"]), f"{eager['step_s']:.3f} s",
            f"{planned['step_s']:.3f} s", *(f"{mode['exposed_s']:.3f} s" for mode in (eager, planned, at_once)),
        )  # fmt: skip


def predicted_seconds(result: Any) -> Iterable[Row]:
    """Predicted by measured seconds, at each share of eager's peak."""
    yield "network", "shares", "one by one", "in the step", "the new plan's step by the first's", "eager's step"
    for network, row in result.items():
        plans = {share: found for share, found in row.items() if share != "eager"}
        ratios = ([found[kind]["ratio"] for found in plans.values()] for kind in ("alone", "in_step"))
        faster = [found["faster"] for found in plans.values()]
        numbers = (", ".join(f"{number:.2f}" for number in each) for each in (*ratios, faster))
        yield network, ", ".join(plans), *numbers, f"{row['eager']['ratio']:.2f}"


def _megabytes(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:,.0f} MB"


TABLES: Mapping[str, tuple[str, Callable[[Any], Iterable[Row]]]] = {
    "step-times": ("step_time.json", step_times),
    "whole-steps": ("whole_step.json", whole_steps),
    "models": ("models.json", models),
    "memory-budget": ("peers.json", memory_budget),
    "beside-peers": ("curve.json", beside_peers),
    "curves": ("curve.json", curves),
    "beside-compile": ("compile.json", beside_compile),
    "regions": ("regions.json", regions),
    "guided": ("guided.json", guided),
    "loops": ("loops.json", loops),
    "estimates": ("fit.json", estimates),
    "predicted-seconds": ("seconds.json", predicted_seconds),
    "parallel-steps": ("ddp.json", parallel_steps),
    "offload": ("offload.json", offload),
    "offload-smallest": ("offload.json", offload_smallest),
    "offload-published": ("offload.json", offload_published),
    "state": ("state.json", state),
}


class Measurements(SphinxDirective):
    """One argument: a name of ``TABLES``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        file, rows_of = TABLES[self.arguments[0]]
        path = RESULTS / file
        self.env.note_dependency(str(path))
        heading, *rows = rows_of(json.loads(path.read_text())["result"])
        lines = [heading, ("---",) * len(heading), *rows]
        return self.parse_text_to_nodes("\n".join(f"| {' | '.join(row)} |" for row in lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measurements", Measurements)
    return {"parallel_read_safe": True}
