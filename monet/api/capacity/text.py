"""The answer, for people."""

from __future__ import annotations

from functools import partial

from monet.api.capacity.answer import AS_IT_IS, INTERRUPTED, PLANNED, UNKNOWN, Answer
from monet.base.amounts import format_bytes
from monet.plans.text import compared, compared_length, format_seconds


def render_answer(answer: Answer, unit: str) -> str:
    """A sentence, and the figures behind it; amounts of memory in ``unit``."""
    show = partial(format_bytes, unit=unit)
    about = "about " if answer.estimated else ""
    lines = [
        _sentence(answer, unit), "",
        f"eager's peak         {about}{show(answer.eager_peak_bytes)}",
        f"eager's step         about {format_seconds(answer.eager_s)}",
    ]  # fmt: skip
    if answer.smallest is not None:
        bound = f"no plan needs less than {show(answer.smallest.bound_bytes)}"
        lines.append(f"smallest budget      {about}{show(answer.smallest.budget_bytes)}  {bound}")
    if answer.points:
        lines += ["", "budget               step, beside eager's"]
    for point in answer.points:
        cost = "no plan was found in time" if point.overhead is None else compared_length(point.overhead)
        asked = "  the memory" if point.budget_bytes == answer.memory_bytes else ""
        lines.append(f"{show(point.budget_bytes):<20} {cost}{asked}")
    if answer.batch is not None:
        lines += ["", _batch(answer)]
    if answer.estimated:
        lines += ["", f"All figures are estimates: nothing was run ({answer.estimated.partition('|')[0]}).",
                  "Without --estimate the operators are measured, and a plan's peak is a promise."]  # fmt: skip
    if answer.status == INTERRUPTED:
        lines += ["", "Interrupted: this is what was known by then."]
    return "\n".join(lines)


def _sentence(answer: Answer, unit: str) -> str:
    memory = format_bytes(answer.memory_bytes, unit)
    if answer.fits == AS_IT_IS:
        return f"{answer.name} fits into {memory} as it is."
    if answer.fits == PLANNED:
        assert answer.overhead is not None
        return f"{answer.name} fits into {memory} with a plan, whose step is {compared(answer.overhead)}."
    if answer.fits == UNKNOWN:
        return f"{answer.name} does not fit into {memory} as it is; whether a plan does is not known yet."
    assert answer.smallest is not None
    least = format_bytes(answer.smallest.budget_bytes, unit)
    return f"{answer.name} does not fit into {memory}: the smallest budget that was found is {least}."


def _batch(answer: Answer) -> str:
    batch = answer.batch
    assert batch is not None
    if batch.largest is None:
        return f"largest batch        none: {batch.message}"
    tried = ", ".join(f"{size} {'fits' if fits else 'does not'}" for size, fits in sorted(batch.tried.items()))
    assert batch.overhead is not None
    return f"largest batch        {batch.largest}, its step {compared(batch.overhead)}  tried: {tried}"
