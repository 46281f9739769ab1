"""``--offload``: plans and sweeps with a second memory of which only the rates are known, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import made_up_profile
import pytest
from click.testing import CliRunner, Result

from monet.cli.main import program


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(made_up_profile, "TENSOR_BYTES", 4_000_000)
    return made_up_profile.write_profile(tmp_path / "chain.json", 4)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, [*arguments, "--quiet"])


def test_a_profile_is_planned_with_moves(profile: Path) -> None:
    without = run("plan", "--profile", str(profile), "--budget", "75%", "--json", "one.json", "--time-limit", "5")
    result = run(
        "plan", "--profile", str(profile), "--budget", "75%", "--offload", "bandwidth=20GB/s", "--json", "two.json",
        "--time-limit", "5",
    )  # fmt: skip
    assert without.exit_code == result.exit_code == 0, result.output
    one, two = (json.loads(Path(name).read_text()) for name in ("one.json", "two.json"))
    assert two["variant"] == "monet+move"
    assert two["objective_s"] <= one["objective_s"]
    second = two["second_memory"]
    assert second["moved"] > 0 and f"{second['moved']} tensors" in result.stdout
    assert second["written_bytes"] == second["moved_bytes"] <= second["read_bytes"]
    assert "second_memory" not in one


@pytest.mark.parametrize("variant", ["move-only", "synchronous", "asynchronous", "static"])
def test_every_variant_plans(profile: Path, variant: str) -> None:
    result = run(
        "plan", "--profile", str(profile), "--budget", "70%", "--offload", "bandwidth=20GB/s", "--variant", variant,
        "--json", "out.json", "--time-limit", "5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out.json").read_text())["recomputed"] == 0


@pytest.mark.slow
def test_the_smallest_budget_is_smaller_with_moves(profile: Path) -> None:
    peaks = []
    for name, offload in (("one.json", ()), ("two.json", ("--offload", "bandwidth=20GB/s"))):
        result = run(
            "plan", "--profile", str(profile), "--minimise", "memory", "--max-overhead", "5%", *offload, "--json",
            name, "--time-limit", "5",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        summary = json.loads(Path(name).read_text())
        assert summary["bound_bytes"] <= summary["peak_bytes"] == summary["budget_bytes"]
        assert summary["overhead"] <= 0.05
        peaks.append(summary["peak_bytes"])
    assert summary["variant"] == "monet+move" and summary["second_memory"]["moved"] > 0
    assert peaks[1] < peaks[0]


@pytest.mark.slow
def test_a_sweep_draws_both_memories(profile: Path) -> None:
    result = run(
        "sweep", "--profile", str(profile), "--budgets", "60%,80%", "--variants", "monet,moving", "--offload",
        "bandwidth=20GB/s", "--time-limit", "3", "--output", "out", "--jobs", "1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(Path("out/sweep.json").read_text())["rows"]
    planned = {(row["variant"], row["budget_bytes"]): row for row in rows if row["objective_s"] is not None}
    for (variant, budget), row in planned.items():
        assert (row["moved_bytes"] is None) == (variant == "monet")
        if variant != "static" and row["fast_operands"] is not None:
            assert row["fast_operands"] == 1
        if (both := planned.get(("monet+move", budget))) is not None and variant in ("move-only", "synchronous"):
            assert both["objective_s"] <= row["objective_s"] * (1 + 1e-9)
    assert "<svg" in Path("out/second-memory.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "60%", "--offload", "tape"), "write disk"),
        (("--budget", "60%", "--offload", "bandwidth=fast"), "no rate"),
        (("--budget", "60%", "--offload", "disk"), "rates are measured with a model"),
        (("--budget", "60%", "--variant", "static"), "--offload"),
        (("--minimise", "memory", "--offload", "disk"), "rates are measured with a model"),
    ],
)
def test_refused(profile: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run("plan", "--profile", str(profile), *arguments)
    assert result.exit_code != 0
    assert message in result.output.replace("\n", " ")


@pytest.mark.parametrize(("offload", "message"), [((), "--offload"), (("--offload", "disk"), "a disk is not")])
def test_a_sweep_of_moves_needs_a_memory(profile: Path, offload: tuple[str, ...], message: str) -> None:
    result = run("sweep", "--profile", str(profile), "--budgets", "60%", "--variants", "static", *offload)
    assert result.exit_code != 0 and message in result.output
