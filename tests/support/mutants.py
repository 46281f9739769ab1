"""Whether the tests notice changes of the code: mutants of a file, each run against the tests of it.

make mutants FILES=monet/plans/verifier.py [MOST=50]      # needs cosmic-ray, which .venv-mutants gets

Changes are those of cosmic-ray that say something: comparisons turned and their ends moved, conditions negated, ``and``
for ``or``, numbers by one, sums for differences, loops that do not run. They are made in a clone of what is committed,
one after the other, a sample by chance of at most ``--most`` a file. What survives is printed as a diff: a test is
missing, or the change makes no difference. Ends with status 1 where less than 95 % of all are killed.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).resolve().parents[2]
LEAST_KILLED = 0.95
LIMIT_S = 600.0
TESTS = {
    "monet/plans": "tests/plans",
    "planner/replay.py": "tests/planner/test_replay.py tests/planner/search/test_two_memories.py "
    "tests/planner/program/test_moves.py",
    "planner/program": "tests/planner/program tests/planner/search/test_two_memories.py",
    "planner/solvers": "tests/planner/solvers",
    "executor/varying.py": "tests/varying",
    "executor/arena_group.py": "tests/executor/test_arena_group.py tests/in_place",
    "executor/step_times.py": "tests/commands/test_trace.py tests/in_place/test_tuning.py tests/experiments",
    "executor/copying": "tests/executor tests/second_memory",
    "executor": "tests/executor",
    "monet/capture/islands": "tests/islands",
}
"""By the beginning of a path: what would notice. The first that fits."""
OPERATORS = (
    "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq", "ReplaceComparisonOperator_Lt_LtE",
    "ReplaceComparisonOperator_LtE_Lt", "ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceUnaryOperator_Delete_Not", "AddNot", "NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add", "ZeroIterationForLoop",
)  # fmt: skip


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--most", default=50, show_default=True, help="Mutants of a file.")
@click.option("--python", "interpreter", default=sys.executable, help="That runs the tests.")
@click.option("--seed", default=0, show_default=True)
def main(files: tuple[str, ...], most: int, interpreter: str, seed: int) -> None:
    clone = ROOT / "build" / "mutants"
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    found: Counter[str] = Counter()
    for file in files:
        found += _of_file(clone, file, most, interpreter, seed)
    total = found["killed"] + found["survived"]
    click.echo(f"killed {found['killed']} of {total}, {found['invalid']} were no programs")
    if found["killed"] < LEAST_KILLED * total:
        raise SystemExit(1)


def _of_file(clone: Path, file: str, most: int, interpreter: str, seed: int) -> Counter[str]:
    """How many mutants had which end; prints those that survived."""
    tests = next((tests for path, tests in TESTS.items() if file.startswith(path)), None)
    if tests is None:
        raise click.ClickException(f"no tests are known for {file}: name them in TESTS")
    # As the clone's own module, whichever monet the interpreter has installed.
    command = (
        f"env PYTHONPATH={clone} PYTHONDONTWRITEBYTECODE=1 {interpreter} -m pytest -x -q -m 'not slow' "
        f"{' '.join(_ordered(clone, file, tests.split()))}"
    )
    config, session = clone / "mutants.toml", clone / "mutants.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{file}"\ntimeout = {LIMIT_S}\nexcluded-modules = []\n'
        f'test-command = "{command}"\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    subprocess.run([_tool(), "init", config.name, session.name], cwd=clone, check=True)
    with use_db(session, WorkDB.Mode.open) as database:
        items = sorted(database.work_items, key=lambda item: item.job_id)
        lines = (clone / file).read_text().splitlines()
        wanted = [
            item
            for item in items
            if (change := item.mutations[0]).operator_name.removeprefix("core/") in OPERATORS
            and not lines[change.start_pos[0] - 1].startswith("@dataclass(")  # slots and repr make no difference
        ]
        wanted.sort(key=lambda item: (item.mutations[0].start_pos, item.mutations[0].operator_name))
        chosen = {item.job_id for item in random.Random(seed).sample(wanted, min(most, len(wanted)))}
        for item in items:
            if item.job_id not in chosen:
                database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    subprocess.run([_tool(), "exec", config.name, session.name], cwd=clone, check=True)
    counts: Counter[str] = Counter()
    with use_db(session, WorkDB.Mode.open) as database:
        for job, result in database.results:
            if job not in chosen:
                continue
            survived = result.test_outcome is TestOutcome.SURVIVED
            counts["survived" if survived else "killed" if result.diff else "invalid"] += 1
            if survived:
                click.echo(result.diff)
    click.echo(f"{file}: {dict(counts)} of {len(wanted)} mutants")
    return counts


def _ordered(clone: Path, file: str, tests: list[str]) -> list[str]:
    """The test files, those first that import the module or have words of its name: what is killed is killed early."""
    module = "monet." + file.removeprefix("monet/").removesuffix(".py").replace("/", ".")
    words = {word[:5] for word in Path(file).stem.split("_")}

    def place(path: Path) -> tuple[bool, int]:
        return module not in path.read_text(), -len(words & {word[:5] for word in path.stem.split("_")})

    found = [
        path
        for test in tests
        for path in ([clone / test] if test.endswith(".py") else (clone / test).rglob("test_*.py"))
    ]
    return [str(path.relative_to(clone)) for path in sorted(dict.fromkeys(found), key=place)]


def _tool() -> str:
    return str(Path(sys.executable).with_name("cosmic-ray"))


if __name__ == "__main__":
    main()
