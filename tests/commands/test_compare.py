"""``monet compare``: what differs between two plans of one model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from monet.cli.main import program
from monet.errors import PlanMismatch
from monet.lab.views.comparison import OtherChoice, comparison
from monet.plans.format import READ, WAIT, WRITE, Buffer, PlanStep
from monet.plans.plan import Plan
from monet.plans.verifier import verify


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(program, ["compare", *map(str, arguments)])


def kept() -> Plan:
    """``relu_1`` is kept for the backward pass."""
    steps = (
        PlanStep("forward", "relu_1", "aten", {}, {"relu_1": 0}, (0,), (4096,), 0),
        PlanStep("backward", "relu_backward_1", "aten", {"relu_1": 0}, {"grad": 1}, (1,), (64,), 1),
    )
    buffers = (Buffer(0, "relu_1", 4096, 0, 0, 2, 0, 1), Buffer(1, "grad", 64, 4096, 1, 2, 1, 1, leaves=True))
    solver = {"baseline_s": 1.0, "objective_s": 1.0, "eager_peak_bytes": 5000}
    return Plan(
        5000, 4160, 4160, 64, {"parameters": 64}, steps, buffers, 0, {"name": "Net", "fingerprint": "f"}, {}, solver
    )


def recomputed() -> Plan:
    """It is run again, and its gradient by another implementation."""
    steps = (
        PlanStep("forward", "relu_1", "aten", {}, {"relu_1": 0}, (0,), (4096,), 0),
        PlanStep("recompute", "relu_1", "aten", {}, {"relu_1": 1}, (1,), (4096,), 1),
        PlanStep("backward", "relu_backward_1", "from-output", {"relu_1": 1}, {"grad": 2}, (2,), (64,), 2),
    )
    buffers = (
        Buffer(0, "relu_1", 4096, 0, 0, 1, 0, 0),
        Buffer(1, "relu_1", 4096, 0, 1, 3, 1, 2),
        Buffer(2, "grad", 64, 4096, 2, 3, 2, 2, leaves=True),
    )
    plan = kept()
    return replace(plan, budget_bytes=4224, steps=steps, buffers=buffers, solver={**plan.solver, "objective_s": 1.25})


def moved() -> Plan:
    steps = (
        PlanStep("forward", "relu_1", "aten", {}, {"relu_1": 0}, (0,), (4096,), 0),
        PlanStep(WRITE, "relu_1", "copy", {"relu_1": 0}, {}, (), (), 1, place=0),
        PlanStep(WAIT, "relu_1", "copy", {"relu_1": 0}, {}, (), (), 2, place=0),
        PlanStep(READ, "relu_1", "copy", {}, {}, (1,), (4096,), 3, place=0),
        PlanStep(WAIT, "relu_1", "copy", {}, {"relu_1": 1}, (), (), 4, place=0),
        PlanStep("backward", "relu_backward_1", "aten", {"relu_1": 1}, {"grad": 2}, (2,), (64,), 5),
    )
    buffers = (
        Buffer(0, "relu_1", 4096, 0, 0, 3, 0, 2),
        Buffer(1, "relu_1", 4096, 0, 3, 6, 3, 5),
        Buffer(2, "grad", 64, 4096, 5, 6, 5, 5, leaves=True),
    )
    return replace(kept(), steps=steps, buffers=buffers, second_bytes=4096)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for make in (kept, recomputed, moved):
        verify(make())
        make().save(tmp_path / f"{make.__name__}.plan.json")
    return tmp_path


def cells(output: str, name: str) -> list[str]:
    """The row that begins with ``name``, in columns."""
    row = next(line for line in output.splitlines() if line.split("  ")[0] == name or line.startswith(f"  {name} "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_recomputed_and_chosen(folder: Path) -> None:
    done = compare(folder / "kept.plan.json", folder / "recomputed.plan.json")
    assert done.exit_code == 0, done.output
    assert cells(done.output, "budget") == ["budget", "5.000 kB", "4.224 kB", "-776 B"]
    assert cells(done.output, "overhead") == ["overhead", "0.0%", "25.0%", "+25.0%"]
    assert cells(done.output, "recomputed") == ["recomputed", "0", "1", "+1"]
    assert cells(done.output, "relu_1") == ["relu_1", "0", "1"]
    assert cells(done.output, "relu_backward") == ["relu_backward", "backward", "aten", "from-output", "1"]
    assert cells(done.output, "run by others") == ["run by others", "1"]
    assert "moved" not in done.output


def test_moved(folder: Path) -> None:
    done = compare(folder / "moved.plan.json", folder / "kept.plan.json")
    assert done.exit_code == 0, done.output
    assert cells(done.output, "moved") == ["moved", "1", "0", "-1"]
    assert cells(done.output, "relu_1") == ["relu_1", "4.096 kB", "-"]
    assert "implementations" not in done.output and "copy" not in done.output


def test_equal_plans(folder: Path) -> None:
    done = compare(folder / "kept.plan.json", folder / "kept.plan.json")
    assert done.exit_code == 0 and done.output.endswith("The plans are equal.\n")


def test_plans_of_different_models(folder: Path) -> None:
    other = folder / "other.plan.json"
    replace(kept(), model={"name": "Another", "fingerprint": "g"}).save(other)
    done = compare(folder / "kept.plan.json", other)
    assert done.exit_code == 1
    for part in ("different steps", "Net", "Another", "--force"):
        assert part in done.output
    assert compare(folder / "kept.plan.json", other, "--force").exit_code == 0


def test_bad_input_is_an_error(folder: Path) -> None:
    done = compare(folder / "kept.plan.json", folder / "none.plan.json")
    assert done.exit_code == 1 and "none.plan.json" in done.output and "Traceback" not in done.output
    assert compare(folder / "kept.plan.json").exit_code == 2


def test_long_lists_are_cut(folder: Path) -> None:
    plan = kept()
    many = tuple(
        PlanStep("forward", f"op{chr(97 + k)}", name, {}, {}, (), (), 0) for k in range(20) for name in ("aten",)
    )
    others = tuple(replace(step, implementation="in-place") for step in many)
    for name, steps in (("a", many), ("b", others)):
        replace(plan, steps=steps, buffers=(), arena_bytes=0, arena_bound_bytes=0).save(folder / f"{name}.plan.json")
    done = compare(folder / "a.plan.json", folder / "b.plan.json")
    assert done.exit_code == 0 and "and 8 more: --all" in done.output and " opt " not in done.output
    done = compare(folder / "a.plan.json", folder / "b.plan.json", "--all")
    assert "more: --all" not in done.output and " opt " in done.output


def test_choices_are_counted_by_operator() -> None:
    found = comparison(kept(), recomputed())
    assert found.choices == (OtherChoice("backward", "relu_backward", "aten", "from-output", 1),)
    assert found.recomputed == {"relu_1": (0, 1)} and found.moved == {}
    with pytest.raises(PlanMismatch, match="--force"):
        comparison(kept(), replace(kept(), model={}))
