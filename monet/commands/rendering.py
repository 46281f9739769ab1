"""What planning found, as text for people and as JSON for programs.

The keys of a summary: ``status``; ``budget_bytes``, ``peak_bytes`` = ``fixed_bytes`` +
``arena_bytes``, and ``fixed``, the parts of ``fixed_bytes`` by name; ``baseline_s`` and
``baseline_peak_bytes``, eager's as a plan is counted, with outputs and gradients throughout: what a budget of
100 % is; ``eager_peak_bytes``, about what eager will be measured to hold (``monet.pipeline.eager_peak``);
``objective_s`` and ``overhead`` = objective / baseline - 1, predicted; ``bound_s``, ``gap`` and
``bound_scope``, the problem that the bound holds for, all None where there is no bound; ``bound_bytes``
where the smallest budget was looked for: then ``gap`` is about it;
``batch`` and ``batches_tried`` (batch -> whether it fits) with ``--max-batch``; ``choices``, operator
family -> implementation -> how often; ``kept`` and ``recomputed``, numbers of operators; ``build_s`` and
``solve_s``. A planned profile has no ``choices`` and no ``kept``, but ``variant``, ``columns`` and ``rows``
of the 0-1 program, and ``stages``, the schedule. ``order``: ``method``, and ``peak_bytes`` of the arena that it needs,
counted by whole runs, with ``bound_bytes``, what every order of the same runs needs.

A measurement has ``eager`` and ``planned``, each with ``step_s``, ``allocator_peak_bytes`` and
``resident_peak_bytes``, None where it could not be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from monet.amounts import format_bytes

_OUTSIDE_THE_PROMISE = (
    "The promise covers all that the module's step holds: what a loss outside the module allocates is\n"
    "outside it, and so is optimiser state beyond --reserve."
)


def render_summary(summary: Mapping[str, Any], unit: str) -> str:
    """The summary as aligned lines, without a final newline; amounts of memory in ``unit``."""
    show = partial(format_bytes, unit=unit)
    rows = [
        ("status", summary["status"], ""),
        *([("batch", str(summary["batch"]), _tried_note(summary))] if "batch" in summary else []),
        ("budget", show(summary["budget_bytes"]), ""),
        ("promised peak", show(summary["peak_bytes"]), f"{summary['peak_bytes']} bytes"),
        ("  arena", show(summary["arena_bytes"]), _arena_note(summary)),
        ("  fixed", show(summary["fixed_bytes"]), ""),
        *((f"    {part}", show(count), "") for part, count in summary["fixed"].items()),
        ("everything kept", show(summary["baseline_peak_bytes"]), _saved(summary, "baseline_peak_bytes")),
        ("eager's peak", show(summary["eager_peak_bytes"]), _saved(summary, "eager_peak_bytes")),
        ("eager's step", _seconds(summary["baseline_s"]), ""),
        (
            "planned step",
            _seconds(summary["objective_s"]),
            f"predicted, {_percent(summary['overhead'], '+')} of eager's",
        ),
        _bound_row(summary, unit),
        ("operators", f"{summary['kept']} kept", f"{summary['recomputed']} recomputed"),
        ("order", summary["order"]["method"], _order_note(summary["order"])),
        ("planning", _seconds(summary["solve_s"]), f"to solve, {_seconds(summary['build_s'])} to build"),
    ]
    lines = _aligned(rows)
    if summary["choices"]:
        lines += ["", "chosen implementations"]
        lines += _aligned(
            (f"  {family}", "", ", ".join(f"{name} {count}" for name, count in _most_used(counts)))
            for family, counts in summary["choices"].items()
        )
    return "\n".join([*lines, "", _OUTSIDE_THE_PROMISE])


def _order_note(order: Mapping[str, Any]) -> str:
    """Whether another order of the same runs could need less."""
    peak, bound = order["peak_bytes"], order["bound_bytes"]
    return (
        "no other order of these runs needs less" if peak <= bound else f"{_percent(peak / bound - 1)} above its bound"
    )


def render_schedule(summary: Mapping[str, Any], unit: str) -> str:
    """The summary of a planned profile as aligned lines, without a final newline; amounts of memory in ``unit``."""
    show = partial(format_bytes, unit=unit)
    rows = [
        ("profile", summary["name"], ""),
        ("variant", summary["variant"], ""),
        ("status", summary["status"], ""),
        ("budget", show(summary["budget_bytes"]), ""),
        ("peak", show(summary["peak_bytes"]), f"{summary['peak_bytes']} bytes"),
        ("everything kept", show(summary["baseline_peak_bytes"]), _saved(summary, "baseline_peak_bytes")),
        ("its step", _seconds(summary["baseline_s"]), ""),
        ("planned step", _seconds(summary["objective_s"]), f"{_percent(summary['overhead'], '+')} of it"),
        _bound_row(summary, unit),
        ("operators", f"{summary['recomputed']} recomputed", ""),
        *([("program", f"{summary['columns']} columns", f"{summary['rows']} rows")] if summary["columns"] else []),
        ("planning", _seconds(summary["solve_s"]), f"to solve, {_seconds(summary['build_s'])} to build"),
    ]
    return "\n".join(_aligned(rows))


def render_measurement(summary: Mapping[str, Any], measured: Mapping[str, Any], unit: str) -> str:
    """Eager's and the planned step as measured, beside what the plan promised and predicted."""
    eager, planned = measured["eager"], measured["planned"]
    peaks = [eager["allocator_peak_bytes"], planned["allocator_peak_bytes"], summary["peak_bytes"]]
    residents = [eager["resident_peak_bytes"], planned["resident_peak_bytes"]]
    table = [
        ("measured", "eager", "planned", "promised"),
        ("step time", _seconds(eager["step_s"]), _seconds(planned["step_s"]), _seconds(summary["objective_s"])),
        ("allocator peak", *(_bytes(peak, unit) for peak in peaks)),
        ("  in bytes", *("-" if peak is None else str(peak) for peak in peaks)),
        ("resident-set peak", *(_bytes(peak, unit) for peak in residents), "-"),
    ]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    )


def _arena_note(summary: Mapping[str, Any]) -> str:
    what = "activations, intermediates, workspaces, temporaries"
    if "arena_bound_bytes" not in summary:
        return what
    excess = summary["arena_bytes"] - summary["arena_bound_bytes"]
    return f"{what}; {excess} bytes above the least for these lifetimes"


def _aligned(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = list(rows)
    label_width = max(len(label) for label, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return [f"{label:<{label_width}}  {value:>{value_width}}  {note}".rstrip() for label, value, note in rows]


def _most_used(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _saved(summary: Mapping[str, Any], other: str) -> str:
    return f"the plan needs {_percent(summary['peak_bytes'] / summary[other])} of it"


def _bound_row(summary: Mapping[str, Any], unit: str) -> tuple[str, str, str]:
    """The bound on what was minimised: seconds, or bytes where the smallest budget was looked for."""
    if "bound_bytes" in summary:
        note = f"gap {_percent(summary['gap'])}, holds for {summary['bound_scope']}"
        return "least peak", format_bytes(summary["bound_bytes"], unit), note
    if not summary["bound_s"]:
        return "lower bound", "-", "none known"
    return "lower bound", _seconds(summary["bound_s"]), _bound_note(summary)


def _tried_note(summary: Mapping[str, Any]) -> str:
    tried = sorted(summary["batches_tried"].items())
    return "tried: " + ", ".join(f"{batch} ({'fits' if fits else 'too large'})" for batch, fits in tried)


def _bound_note(summary: Mapping[str, Any]) -> str:
    gap = "" if summary["gap"] is None else f"gap {_percent(summary['gap'])}, "
    return f"{gap}holds for {summary['bound_scope']}"


def _bytes(count: int | None, unit: str) -> str:
    return "-" if count is None else format_bytes(count, unit)


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def _percent(share: float, sign: str = "-") -> str:
    return f"{share:{sign}.1%}"
