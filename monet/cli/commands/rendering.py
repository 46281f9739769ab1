"""What planning found, as text for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from monet.base.amounts import format_bytes
from monet.pipeline.summary import OrderSummary, Summary
from monet.plans.text import compared, held_for

_OUTSIDE_THE_PROMISE = (
    "The promise covers all that the module's step holds: what a loss outside the module allocates is\n"
    "outside it, and so is optimiser state beyond --reserve."
)


def render_summary(summary: Summary, unit: str) -> str:
    """The summary as aligned lines, without a final newline; amounts of memory in ``unit``."""
    show = partial(format_bytes, unit=unit)
    # What every summary of a model has, and none of a profile.
    assert summary.arena_bytes is not None and summary.fixed is not None and summary.eager_peak_bytes is not None
    assert summary.order is not None
    rows = [
        ("status", summary.status, ""),
        *_batch_rows(summary),
        ("budget", show(summary.budget_bytes), ""),
        ("promised peak", show(summary.peak_bytes), f"{summary.peak_bytes} bytes"),
        ("  arena", show(summary.arena_bytes), _arena_note(summary)),
        ("  fixed", show(summary.fixed_bytes), ""),
        *((f"    {part}", show(count), "") for part, count in summary.fixed.items()),
        ("everything kept", show(summary.baseline_peak_bytes), _saved(summary.peak_bytes, summary.baseline_peak_bytes)),
        ("eager's peak", show(summary.eager_peak_bytes), _saved(summary.peak_bytes, summary.eager_peak_bytes)),
        ("eager's step", _seconds(summary.baseline_s), _eager_note(summary)),
        ("planned step", _seconds(summary.objective_s), f"predicted, {compared(summary.overhead)}"),
        _bound_row(summary, unit),
        ("operators", f"{summary.kept} kept", _recomputed(summary, show)),
        *_second_memory_rows(summary, unit),
        ("order", summary.order.method, _order_note(summary.order)),
        ("planning", _seconds(summary.solve_s), f"to solve, {_seconds(summary.build_s)} to build"),
    ]
    lines = _aligned(rows)
    if summary.choices:
        lines += ["", "chosen implementations"]
        lines += _aligned(
            (f"  {family}", "", ", ".join(f"{name} {count}" for name, count in _most_used(counts)))
            for family, counts in summary.choices.items()
        )
    return "\n".join([*lines, "", _OUTSIDE_THE_PROMISE])


def _eager_note(summary: Summary) -> str:
    """What the sum of operators does not have."""
    waits_s = summary.eager_memory_s
    return "predicted" + ("" if waits_s is None else f", {_seconds(waits_s)} of it for memory asked for anew")


def _recomputed(summary: Summary, show: Callable[[int], str]) -> str:
    """How much runs again, and why not less."""
    again, needed = f"{summary.recomputed} recomputed", summary.next_peak_bytes
    if needed is None:
        return again
    if needed > summary.budget_bytes:
        return f"{again}; one less needs {show(needed)}"
    return f"{again}; one less is counted at {show(needed)}"


def _second_memory_rows(summary: Summary, unit: str) -> list[tuple[str, str, str]]:
    """What is moved, how much of the copying is hidden behind operators, and what it wears."""
    second = summary.second_memory
    if second is None:
        return []
    show = partial(format_bytes, unit=unit)
    copied = second.written_bytes + second.read_bytes
    hidden = f"{_percent(second.hidden_bytes / copied)} hidden, {_seconds(second.waited_s)} waited" if copied else ""
    rates = f"{show(round(second.write_rate))}/s to it, {show(round(second.read_rate))}/s back"
    return [
        ("moved", f"{second.moved} tensor{'' if second.moved == 1 else 's'}", show(second.moved_bytes)),
        ("  copies", show(copied), hidden),
        ("  written", show(second.written_bytes), f"each step ({second.mode}; {rates})"),
    ]


def _order_note(order: OrderSummary) -> str:
    """Whether another order of the same runs could need less."""
    peak, bound = order.peak_bytes, order.bound_bytes
    if bound == 0:
        return "nothing is proven of other orders"
    return (
        "no other order of these runs needs less" if peak <= bound else f"{_percent(peak / bound - 1)} above its bound"
    )


def render_schedule(summary: Summary, unit: str) -> str:
    """The summary of a planned profile as aligned lines, without a final newline; amounts of memory in ``unit``."""
    show = partial(format_bytes, unit=unit)
    rows = [
        ("profile", summary.name or "", ""),
        ("variant", summary.variant or "", ""),
        ("status", summary.status, ""),
        ("budget", show(summary.budget_bytes), ""),
        ("peak", show(summary.peak_bytes), f"{summary.peak_bytes} bytes"),
        ("everything kept", show(summary.baseline_peak_bytes), _saved(summary.peak_bytes, summary.baseline_peak_bytes)),
        ("its step", _seconds(summary.baseline_s), ""),
        ("planned step", _seconds(summary.objective_s), compared(summary.overhead, "that")),
        _bound_row(summary, unit),
        ("operators", f"{summary.recomputed} recomputed", ""),
        *_second_memory_rows(summary, unit),
        *([("program", f"{summary.columns} columns", f"{summary.rows} rows")] if summary.columns else []),
        ("planning", _seconds(summary.solve_s), f"to solve, {_seconds(summary.build_s)} to build"),
    ]
    return "\n".join(_aligned(rows))


def render_measurement(summary: Summary, measured: Mapping[str, Any], unit: str) -> str:
    """Eager's and the planned step as measured, beside what the plan promised and predicted."""
    eager, planned = measured["eager"], measured["planned"]
    peaks = [eager["allocator_peak_bytes"], planned["allocator_peak_bytes"], summary.peak_bytes]
    residents = [eager["resident_peak_bytes"], planned["resident_peak_bytes"]]
    table = [
        ("measured", "eager", "planned", "promised"),
        ("step time", _seconds(eager["step_s"]), _seconds(planned["step_s"]), _seconds(summary.objective_s)),
        ("allocator peak", *(_bytes(peak, unit) for peak in peaks)),
        ("  in bytes", *("-" if peak is None else str(peak) for peak in peaks)),
        ("resident-set peak", *(_bytes(peak, unit) for peak in residents), "-"),
    ]
    return "\n".join(table_lines(table))


def table_lines(rows: Sequence[tuple[str, ...]], words: Collection[int] = (0,)) -> list[str]:
    """Rows of equal length as lines: the columns ``words`` to the left, the others, numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _arena_note(summary: Summary) -> str:
    what = "activations, intermediates, workspaces, temporaries"
    if summary.arena_bytes is None or summary.arena_bound_bytes is None:
        return what
    excess = summary.arena_bytes - summary.arena_bound_bytes
    return f"{what}; {excess} bytes above the least for these lifetimes"


def _aligned(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = list(rows)
    label_width = max(len(label) for label, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    return [f"{label:<{label_width}}  {value:>{value_width}}  {note}".rstrip() for label, value, note in rows]


def _most_used(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _saved(peak_bytes: int, other_bytes: int) -> str:
    return f"the plan needs {_percent(peak_bytes / other_bytes)} of it"


def _bound_row(summary: Summary, unit: str) -> tuple[str, str, str]:
    """The bound on what was minimised: seconds, or bytes where the smallest budget was looked for."""
    gap = "" if summary.gap is None else f"gap {_percent(summary.gap)}, "
    note = f"{gap}holds for {held_for(summary.bound_scope)}"
    if summary.bound_bytes is not None:
        return "least peak", format_bytes(summary.bound_bytes, unit), note
    if not summary.bound_s:
        return "lower bound", "-", "none known"
    return "lower bound", _seconds(summary.bound_s), note


def _batch_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """The batch that was found, if one was looked for, and those that were tried."""
    if summary.batch is None or summary.batches_tried is None:
        return []
    outcomes = ((batch, "fits" if fits else "too large") for batch, fits in sorted(summary.batches_tried.items()))
    tried = ", ".join(f"{batch} ({outcome})" for batch, outcome in outcomes)
    return [("batch", str(summary.batch), f"tried: {tried}")]


def _bytes(count: int | None, unit: str) -> str:
    return "-" if count is None else format_bytes(count, unit)


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def _percent(share: float) -> str:
    return f"{share:.1%}"
