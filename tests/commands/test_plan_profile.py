"""``monet plan --profile`` on a made-up profile: schedules, summaries, exit status, and documents that are wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from made_up_profile import write_profile

from monet.cli.main import program
from monet.errors import ConfigError
from monet.planner.problem import Problem
from monet.planner.published.profile import load_published
from monet.planner.published.solution import runs_from_published
from monet.planner.replay import Replay, replay
from monet.planner.schedules import plan_variant
from monet.planner.search.least_peak import keep_everything_bytes

KEYS = {
    "name", "variant", "status", "budget_bytes", "peak_bytes", "fixed_bytes", "baseline_s", "baseline_peak_bytes",
    "objective_s", "overhead", "bound_s", "gap", "bound_scope", "columns", "rows", "build_s", "solve_s", "recomputed",
    "stages",
}  # fmt: skip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["plan", *arguments])


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_profile(tmp_path / "chain.json", 4)


def planned(profile: Path, *arguments: str) -> dict[str, Any]:
    result = run("--profile", str(profile), "--json", "out.json", "--quiet", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    summary: dict[str, Any] = json.loads(Path("out.json").read_text())
    assert f"{summary['peak_bytes']} bytes" in result.stdout and summary["name"] in result.stdout
    return summary


def replayed(profile: Path, summary: dict[str, Any]) -> Replay:
    problem = load_published(profile)
    saved = {v.operator: v.id for v in problem.intermediates}
    return replay(problem, runs_from_published(summary["stages"], saved))


def check(profile: Path, summary: dict[str, Any]) -> None:
    found = replayed(profile, summary)
    assert found.peak_bytes == summary["peak_bytes"] <= summary["budget_bytes"]
    assert found.objective_s == pytest.approx(summary["objective_s"])
    problem = load_published(profile)
    eager = plan_variant("pytorch", problem, keep_everything_bytes(problem))
    assert (summary["baseline_s"], summary["baseline_peak_bytes"]) == (eager.objective_s, eager.peak_bytes)
    assert summary["overhead"] == pytest.approx(summary["objective_s"] / eager.objective_s - 1)
    assert summary["recomputed"] == sum(len(stage["forward"]) for stage in summary["stages"][1:])
    assert len(summary["stages"]) == 1 + len(problem.backward)


def test_a_budget(profile: Path) -> None:
    summary = planned(profile, "--budget", "70%")
    assert set(summary) == KEYS
    check(profile, summary)
    assert summary["budget_bytes"] == int(0.7 * summary["baseline_peak_bytes"])
    assert summary["status"] == "optimal" and summary["bound_scope"] == "full"
    assert 0 <= summary["gap"] <= 0.01
    assert summary["gap"] == pytest.approx(1 - summary["bound_s"] / summary["objective_s"])
    assert summary["columns"] > 0 and summary["rows"] > 0 and summary["solve_s"] > 0
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["chain.json", "out.json"]


@pytest.mark.slow
def test_a_proof_of_a_windowed_plan(profile: Path) -> None:
    windowed = planned(profile, "--budget", "70%", "--window", "2")
    proven = planned(profile, "--budget", "70%", "--window", "2", "--prove")
    assert windowed["bound_scope"] == "full" or windowed["bound_scope"].startswith("window 2")
    assert proven["bound_scope"] == "full"
    check(profile, proven)
    best = planned(profile, "--budget", "70%", "--gap", "0")
    assert 0 < proven["bound_s"] <= best["objective_s"] * (1 + 1e-6)


@pytest.mark.slow
def test_the_least_memory(profile: Path) -> None:
    least = planned(profile, "--minimise", "memory", "--gap", "0")
    assert set(least) == KEYS | {"bound_bytes"}
    check(profile, least)
    assert least["bound_s"] is None
    assert least["budget_bytes"] == least["peak_bytes"] == least["bound_bytes"] and least["gap"] == 0
    # One byte less, and there is no plan.
    assert run("--profile", str(profile), "--budget", str(least["peak_bytes"]), "--quiet").exit_code == 0
    below = run("--profile", str(profile), "--budget", str(least["peak_bytes"] - 1), "--quiet")
    assert below.exit_code == 1 and "fits in" in below.stderr
    limited = planned(profile, "--minimise", "memory", "--max-overhead", "5%")
    check(profile, limited)
    assert limited["overhead"] <= 0.05 < least["overhead"]
    assert least["peak_bytes"] < limited["peak_bytes"] and limited["bound_bytes"] <= limited["peak_bytes"]


def test_no_overhead_is_small_enough(profile: Path) -> None:
    result = run("--profile", str(profile), "--minimise", "memory", "--max-overhead", "-60%", "--quiet")
    assert result.exit_code == 1
    assert result.stdout == "" and "allow more overhead" in result.stderr


def test_an_infeasible_budget(profile: Path) -> None:
    result = run("--profile", str(profile), "--budget", "2MB", "--json", "out.json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "fits in 2.000 MB (2,000,000 bytes)" in result.stderr and "smallest budget known" in result.stderr
    assert "Traceback" not in result.stderr and not Path("out.json").exists()
    for written, shown in (("2.5MiB", "2.500 MiB (2,621,440 bytes)"), ("2,000,000 bytes", "2,000,000 bytes")):
        refused = run("--profile", str(profile), "--budget", written, "--variant", "pytorch").stderr
        assert f"fits in {shown}. The smallest budget known to work is " in refused
        named = refused.partition("known to work is ")[2].partition(". Try")[0]
        exact = named.rpartition("(")[2].rstrip(")")
        assert run("--profile", str(profile), "--budget", exact, "--variant", "pytorch").exit_code == 0
    refused = run("--profile", str(profile), "--budget", "40%", "--variant", "pytorch").stderr
    assert "bytes), 100.0% of eager's peak. Try" in refused


@pytest.mark.parametrize("variant", ["none", "conv", "in-place", "monet", "checkmate-d", "checkmate-o"])
@pytest.mark.sampled(2)
def test_variants(profile: Path, variant: str) -> None:
    summary = planned(profile, "--budget", "90%", "--variant", variant)
    check(profile, summary)
    assert summary["variant"] == variant
    assert summary["objective_s"] >= planned(profile, "--budget", "90%")["objective_s"] * (1 - 0.011)


@pytest.mark.parametrize(
    "variant", ["pytorch", "gist", "gist-reduced", "sqrt-n", "block", "sqrt-n-blocks", "selective"]
)
def test_fixed_policies_prove_nothing(profile: Path, variant: str) -> None:
    summary = planned(profile, "--budget", "110%", "--variant", variant, "--prove")
    check(profile, summary)
    assert summary["status"] == "heuristic"
    assert (summary["bound_s"], summary["gap"], summary["columns"]) == (None, None, 0)
    text = run("--profile", str(profile), "--budget", "110%", "--variant", variant, "--quiet").stdout
    assert "none known" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--budget"),
        (["tiny.yaml", "--budget", "50%"], "either CONFIG or --profile"),
        (["--budget", "50%", "--minimise", "memory"], "--budget does not go with --minimise"),
        (["--minimise", "memory", "--prove"], "--prove does not go with"),
        (["--minimise", "memory", "--max-batch"], "--max-batch does not go with"),
        (["--minimise", "memory", "--variant", "gist"], "goes with a budget"),
        (["--minimise", "time"], "time"),
        (["--budget", "50%", "--max-overhead", "10%"], "--max-overhead goes with"),
        (["--minimise", "memory", "--max-overhead", "0.1"], "not a percentage"),
        (["--budget", "6GB", "--max-batch"], "--max-batch does not go with --profile"),
        (["--budget", "50%", "--variant", "nothing"], "no variant is called 'nothing'"),
        (["--budget", "50%", "--variant", "all"], "the whole program is called monet"),
        (["--budget", "50%", "--measure"], "--measure does not go with --profile"),
        (["--budget", "50%", "--output", "x.json"], "--output does not go with --profile"),
        (["--budget", "50%", "--reserve", "1MB"], "--reserve does not go with --profile"),
        (["--budget", "50%", "--threads", "1"], "--threads does not go with --profile"),
        (["--budget", "50%", "--no-cache"], "--no-cache does not go with --profile"),
        (["--budget", "50%", "--exact"], "--exact does not go with --profile"),
        (["--budget", "50%", "--json", "none/out.json"], "none"),
    ],
)
def test_options_that_do_not_go_together(profile: Path, arguments: list[str], message: str) -> None:
    result = run("--profile", str(profile), *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert message in " ".join(result.stderr.split())
    assert [path.name for path in Path.cwd().iterdir()] == ["chain.json"]


def without(*path: str | int) -> Callable[[Any], None]:
    def remove(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return remove


def having(value: Any, *path: str | int) -> Callable[[Any], None]:
    def put(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return put


WRONG = [
    (without("format"), "not in the format"),
    (having("monet-profile-2", "format"), "not in the format"),
    *((without(key), f"{key} is missing") for key in ("model", "batch", "input", "params", "outputs", "forward")),
    (without("backward"), "backward is missing"),
    (without("input", "bytes"), "input.bytes is missing"),
    (having([], "forward"), "forward is empty"),
    (having({}, "forward"), "forward is {}, not a list"),
    (having(3, "forward", 1), "forward[1] is 3, not an object"),
    *(
        (without("forward", 1, key), f"forward[1].{key} is missing")
        for key in ("id", "inputs", "bytes", "saved", "impls")
    ),
    (having(7, "forward", 1, "op"), "forward[1].op is 7, not text"),
    (having("many", "forward", 1, "bytes"), "forward[1].bytes is 'many', not a number of bytes"),
    (having(-5, "forward", 1, "bytes"), "forward[1].bytes is -5"),
    (having(True, "forward", 1, "bytes"), "forward[1].bytes is True"),
    (having([], "forward", 0, "impls"), "forward[0].impls is empty"),
    *(
        (without("forward", 0, "impls", 1, key), f"forward[0].impls[1].{key} is missing")
        for key in ("name", "ms", "workspace", "aliased")
    ),
    (having(None, "forward", 0, "impls", 1, "ms"), "forward[0].impls[1].ms is None"),
    (having("1.0", "forward", 0, "impls", 1, "ms"), "forward[0].impls[1].ms is '1.0', not a number of milliseconds"),
    (having(float("nan"), "forward", 0, "impls", 1, "ms"), "forward[0].impls[1].ms is nan"),
    (having(99, "forward", 1, "inputs", 0), "forward[1].inputs has 99"),
    (having(0, "forward", 1, "id"), "a second time"),
    (having(7, "forward", 1, "impls", 1, "overwrites"), "forward[1].impls[1].overwrites has 7"),
    (having("s9", "forward", 1, "impls", 2, "saves"), "forward[1].impls[2].saves has 's9'"),
    (without("forward", 1, "impls", 2), "none that saves 's1'"),
    (having("masks", "forward", 1, "saved", 0, "kind"), "forward[1].saved[0].kind is 'masks'"),
    (having("basic", "forward", 1, "impls", 0, "name"), "no 'plain'"),
    (having(99, "outputs", 0), "outputs has 99"),
    *(
        (without("backward", 0, key), f"backward[0].{key} is missing")
        for key in ("id", "of", "op", "part", "grad_inputs", "grad_input_bytes", "param_grad_bytes", "impls")
    ),
    (having([], "backward", 0, "grad_input_bytes"), "not as long as"),
    (without("backward", 0, "impls", 0, "reads"), "backward[0].impls[0].reads is missing"),
    (having(["s99"], "backward", 0, "impls", 0, "reads"), "backward[0].impls[0].reads has 's99'"),
    (having([1.5], "backward", 0, "impls", 0, "reads"), "backward[0].impls[0].reads[0] is 1.5"),
    (having([{}], "params"), "params[0].bytes is missing"),
]


@pytest.mark.parametrize(("break_it", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_document_is_refused_with_its_place(
    profile: Path, break_it: Callable[[Any], None], message: str
) -> None:
    document = json.loads(profile.read_text())
    broken = copy.deepcopy(document)
    break_it(broken)
    path = profile.with_name("broken.json")
    path.write_text(json.dumps(broken))
    with pytest.raises(ConfigError) as caught:
        load_published(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"monet-profile-1"', "\udce9"])
def test_what_is_no_profile_is_wrong_usage(profile: Path, text: str) -> None:
    path = Path("other.json")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for name in ("other.json", "missing.json", "."):
        result = run("--profile", name, "--budget", "50%")
        assert result.exit_code == 2, result.output
        assert name in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


def test_the_hand_made_profile_is_read_as_it_is_written(profile: Path) -> None:
    problem: Problem = load_published(profile)
    assert [operator.id for operator in problem.forward] == [f"f{i}" for i in range(8)]
    bits = next(v for v in problem.intermediates if v.id == "s1")
    assert (bits.operator, bits.bytes, bits.kind) == ("f1", 31_250, "sign-bits")
    assert bits.time_s == pytest.approx(0.5e-3)
    assert problem.fixed_bytes == 1_040_000
    assert problem.backward[0].live_before_bytes == 1_000_000
    assert problem.backward[0].live_during_bytes == 2_000_000
    # Parameter gradients stay: three of the later layers, and this one's own incoming gradient.
    assert problem.backward[-1].live_before_bytes == 1_000_000 + 3 * 10_000
