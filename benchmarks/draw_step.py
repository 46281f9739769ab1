"""Draws memory along one step, eager's above a plan's, from two plan files: the picture of the README.

monet plan resnet50.yaml --variant pytorch --budget 100% --output eager.plan.json
monet plan resnet50.yaml --budget 6GB --output planned.plan.json
python benchmarks/draw_step.py eager.plan.json planned.plan.json

A plan file has the bytes and the ticks of every buffer, so nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import click
import record

from monet.plans.plan import Plan

PICTURE = Path(__file__).parents[1] / "docs" / "memory-along-step.svg"
WIDTH, HEIGHT = 880, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 772, 48, 362  # of the area that the curves are in, in pixels
INK, PALE, EAGER, PLANNED = "#1f2328", "#d8dee4", "#bc4c00", "#0969da"
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


LEAST_OF_EAGER = 0.95
"""Of eager's peak: what the buffers of its plan account for."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """``memory_bytes``: the most in memory during each run of an operator; the first ``forward`` are forward runs."""

    memory_bytes: tuple[int, ...]
    forward: int

    @property
    def peak_bytes(self) -> int:
        return max(self.memory_bytes)


def planned_timeline(plan: Plan) -> Timeline:
    """What a planned step holds: the fixed bytes throughout, and of its arena what is in use."""
    used = ((buffer.begin, buffer.end, buffer.bytes) for buffer in plan.buffers)
    return _timeline(plan, plan.fixed_bytes, used)


def eager_timeline(plan: Plan) -> Timeline:
    """What eager's own step holds. ``plan``: by the variant ``pytorch``.

    A plan counts outputs from the beginning, and eager has each from when it is made. Those are the requests that no
    buffer serves; the gradients of the outputs come with the backward pass. What autograd keeps of which a plan's
    kernels read the shape alone is not in it. Raises ``UsageError`` where something runs again, or the peak is not near
    the one that the planner found for eager (``eager_peak_bytes``).
    """
    end = max(buffer.end for buffer in plan.buffers) + 1
    used = [(buffer.begin, buffer.end, buffer.bytes) for buffer in plan.buffers]
    for step in plan.steps:
        served = zip(step.requests, step.request_bytes, strict=True)
        used += [(step.begin, end, count) for buffer, count in served if buffer is None]
    backward = next(step.begin for step in plan.steps if step.kind != "forward")
    used.append((backward, end, plan.fixed["output_gradients"]))
    later = sum(plan.fixed[kind] for kind in ("outputs", "output_gradients", "gradients"))
    timeline = _timeline(plan, plan.fixed_bytes - later, used)
    of_eager = timeline.peak_bytes / plan.solver["eager_peak_bytes"]
    if any(step.kind == "recompute" for step in plan.steps) or not LEAST_OF_EAGER <= of_eager <= 1:
        raise click.UsageError("the first plan is not eager's step: make it with --variant pytorch --budget 100%")
    return timeline


def _timeline(plan: Plan, held_bytes: int, used: Iterable[tuple[int, int, int]]) -> Timeline:
    """``used``: (first tick, first tick after, bytes) of all that is not held throughout."""
    change: dict[int, int] = {}
    for begin, end, count in used:
        change[begin] = change.get(begin, 0) + count
        change[end] = change.get(end, 0) - count
    ticks = sorted({*change, *(step.begin for step in plan.steps)})
    load = dict(zip(ticks, accumulate(change.get(tick, 0) for tick in ticks), strict=True))
    begins = [step.begin for step in plan.steps]
    ends = [*begins[1:], ticks[-1] + 1]
    memory = tuple(
        held_bytes + max(load[tick] for tick in ticks if begin <= tick < end)
        for begin, end in zip(begins, ends, strict=True)
    )
    return Timeline(memory, sum(step.kind == "forward" for step in plan.steps))


@dataclass(frozen=True, slots=True)
class Scale:
    """From runs and bytes to pixels. ``unit``: bytes and name of what the axis is labelled in."""

    runs: int
    most_bytes: int
    unit: tuple[int, str]

    def x(self, run: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * run / self.runs, 1)

    def y(self, count: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * count / self.most_bytes, 1)

    def show(self, count: int, form: str) -> str:
        return f"{count / self.unit[0]:{form}} {self.unit[1]}"


def picture(eager: Timeline, planned: Timeline, budget_bytes: int) -> str:
    """Both timelines over one axis of runs, with the line of the budget, as SVG text: dark on white everywhere."""
    runs = max(len(eager.memory_bytes), len(planned.memory_bytes))
    most = max(eager.peak_bytes, planned.peak_bytes, budget_bytes)
    scale = Scale(runs, most, next(unit for unit in UNITS if most >= unit[0]))
    curves = [*_curve(scale, eager, EAGER), *_curve(scale, planned, PLANNED)]
    lines = [*_budget(scale, budget_bytes), *_labels(scale, eager, planned, budget_bytes)]
    return "\n".join([*_head(), *_axes(scale), *curves, *lines, "</svg>\n"])


def _head() -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">'
    )
    yield "<title>Memory along one training step, eager and planned</title>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>'


def _axes(scale: Scale) -> Iterator[str]:
    for count in range(0, scale.most_bytes + 1, _spacing(scale.most_bytes)):
        yield f'<path d="M{LEFT} {scale.y(count)}H{RIGHT}" stroke="{PALE}"/>'
        yield _text(LEFT - 8, scale.y(count) + 5, f"{count / scale.unit[0]:g}", "end")
    for run in range(0, scale.runs + 1, _spacing(scale.runs)):
        yield f'<path d="M{scale.x(run)} {BOTTOM}v5" stroke="{INK}"/>'
        yield _text(scale.x(run), BOTTOM + 21, str(run), "middle")
    yield f'<path d="M{LEFT} {BOTTOM}H{RIGHT}" stroke="{INK}"/>'
    below = "operators run since the step began (triangle: the backward pass begins)"
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 45, below, "middle")
    yield _text(LEFT - 8, TOP - 22, scale.unit[1], "end")


def _spacing(most: int) -> int:
    """1, 2 or 5 times a power of ten, so that there are four to nine marks up to ``most``."""
    power = 10 ** int(math.log10(most / 4)) if most >= 4 else 1
    return max(step * power for step in (1, 2, 5) if step * power * 4 <= max(most, 4))


def _curve(scale: Scale, timeline: Timeline, colour: str) -> Iterator[str]:
    memory = timeline.memory_bytes
    steps = "".join(f"V{scale.y(count)}H{scale.x(run + 1)}" for run, count in enumerate(memory))
    yield f'<path d="M{LEFT} {BOTTOM}{steps}V{BOTTOM}z" fill="{colour}" fill-opacity="0.15"/>'
    start, rest = scale.y(memory[0]), steps[steps.index("H") :]
    yield f'<path d="M{LEFT} {start}{rest}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    x, y = scale.x(timeline.forward), scale.y(memory[timeline.forward])
    yield f'<path d="M{x} {y}l-7 12h14z" fill="{colour}" stroke="#ffffff"/>'


def _budget(scale: Scale, budget_bytes: int) -> Iterator[str]:
    y = scale.y(budget_bytes)
    yield f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{INK}" stroke-width="1.5" stroke-dasharray="7 4"/>'
    yield _text(RIGHT + 8, y + 5, f"budget {scale.show(budget_bytes, '.3g')}", "start")


def _labels(scale: Scale, eager: Timeline, planned: Timeline, budget_bytes: int) -> Iterator[str]:
    """Eager's above its peak, the plan's above the line of the budget."""
    highest = scale.x(eager.memory_bytes.index(eager.peak_bytes) + 0.5)
    text = f"eager PyTorch: {scale.show(eager.peak_bytes, '.2f')}"
    yield _text(min(max(highest, LEFT + 110), RIGHT - 110), scale.y(eager.peak_bytes) - 10, text, "middle", EAGER)
    text = f"planned: {scale.show(planned.peak_bytes, '.2f')}"
    yield _text(RIGHT, scale.y(budget_bytes) - 9, text, "end", PLANNED)


def _text(x: float, y: float, text: str, anchor: str, colour: str = INK) -> str:
    """In another colour than ink: a curve's name, with a white rim where it crosses lines."""
    name = ' font-weight="bold" font-size="16" stroke="#ffffff" stroke-width="4" paint-order="stroke"'
    style = "" if colour == INK else name
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}"{style}>{text}</text>'


@click.command()
@click.argument("eager_plan", type=click.Path(path_type=Path, exists=True))
@click.argument("plan", type=click.Path(path_type=Path, exists=True))
@click.option("--output", type=click.Path(path_type=Path), default=PICTURE, show_default=True)
def main(eager_plan: Path, plan: Path, output: Path) -> None:
    """Draw the step of PLAN below eager's, which EAGER_PLAN is of (`monet plan --variant pytorch --budget 100%`)."""
    made = Plan.load(plan)
    of_eager = Plan.load(eager_plan)
    eager, planned = eager_timeline(of_eager), planned_timeline(made)
    output.write_text(picture(eager, planned, made.budget_bytes))
    content = {
        "plan_sha256": sha256(plan.read_bytes()).hexdigest(),
        "budget_bytes": made.budget_bytes,
        "peak_bytes": made.peak_bytes,
        "eager_peak_bytes": of_eager.solver["eager_peak_bytes"],
        "runs": len(made.steps),
        "eager_runs": len(eager.memory_bytes),
    }
    click.echo(f"drew {output}: {content['eager_peak_bytes']} bytes eager, {content['peak_bytes']} bytes planned")
    if output == PICTURE:
        click.echo(f"wrote {record.write('memory_along_step', content)}")


if __name__ == "__main__":
    main()
