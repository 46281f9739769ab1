"""``monet sweep`` from its command line to the files it leaves; every cell is really planned, in child processes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result
from made_up_profile import write_profile

from monet.cli.main import program, sweep_main
from monet.planner.published.profile import load_published
from monet.planner.schedules import plan_variant
from monet.planner.search import Solving

BUDGETS = "3500kB:5500kB:1MB"
AMOUNTS = (3_500_000, 4_500_000, 5_500_000)
VARIANTS = ("none", "monet", "pytorch", "sqrt-n")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(program, ["sweep", *map(str, arguments), "--gap", "0", "--time-limit", "5"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder with a profile ``chain.json`` and its finished sweep in ``out``."""
    folder = tmp_path_factory.mktemp("sweep")
    profile = write_profile(folder / "chain.json")
    result = run(
        *("--profile", profile, "--budgets", BUDGETS, "--variants", ",".join(VARIANTS)),
        *("--jobs", "2", "--output", folder / "out"),
    )
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture
def again(made: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(made[0], tmp_path / "copy")
    return tmp_path / "copy"


def sweep_again(folder: Path, *more: str) -> Result:
    return run(
        *("--profile", folder / "chain.json", "--budgets", BUDGETS, "--variants", ",".join(VARIANTS)),
        *("--output", folder / "out", *more),
    )


def rows_of(folder: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads((folder / "out" / "sweep.json").read_text())["rows"]
    return rows


def test_every_cell_has_a_row_with_the_planners_own_figures(made: tuple[Path, Result]) -> None:
    folder, _ = made
    rows = rows_of(folder)
    assert [(row["variant"], row["budget_bytes"]) for row in rows] == [(v, b) for v in VARIANTS for b in AMOUNTS]
    problem = load_published(folder / "chain.json")
    kept = plan_variant("pytorch", problem, 10**12)
    expected = plan_variant("monet", problem, AMOUNTS[0], Solving(gap=0.0, time_limit_s=5.0))
    for row in rows:
        assert row["baseline_s"] == pytest.approx(kept.objective_s)
        assert row["baseline_peak_bytes"] == kept.peak_bytes
    monet = next(row for row in rows if row["variant"] == "monet")
    assert monet["objective_s"] == pytest.approx(expected.objective_s)
    assert monet["overhead"] == pytest.approx(expected.objective_s / kept.objective_s - 1)
    assert monet["peak_bytes"] == expected.peak_bytes
    assert monet["memory_ratio"] == pytest.approx(expected.peak_bytes / kept.peak_bytes)
    assert monet["status"] == "optimal"
    assert monet["gap"] == pytest.approx(0, abs=1e-6)
    times = [monet[f"to_gap_{percent}_s"] for percent in (10, 5, 2, 1)]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in times)
    assert times == sorted(times)  # type: ignore[type-var]


def test_infeasible_is_a_result(made: tuple[Path, Result]) -> None:
    folder, result = made
    row = next(row for row in rows_of(folder) if row["variant"] == "pytorch" and row["budget_bytes"] == AMOUNTS[0])
    assert row["status"] == "infeasible"
    assert row["smallest_bytes"] == row["baseline_peak_bytes"]
    assert row["objective_s"] is None
    assert "infeasible" in result.stdout
    assert f'<td class="text">{row["message"]}</td>' in (folder / "out" / "report.html").read_text()


def test_the_csv_file_says_what_the_json_file_says(made: tuple[Path, Result]) -> None:
    folder, _ = made
    with open(folder / "out" / "sweep.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    rows = rows_of(folder)
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert list(line) == list(row)
        for name, value in row.items():
            assert line[name] == ("" if value is None else value if isinstance(value, str) else repr(value)), name


def test_the_json_file_says_where_it_comes_from(made: tuple[Path, Result]) -> None:
    about = json.loads((made[0] / "out" / "sweep.json").read_text())
    assert about["options"]["time_limit_s"] == 5.0
    assert about["machine"]["cores"] == os.cpu_count()
    assert about["versions"]["python"] == sys.version.split()[0]
    assert sum(made["cells"] for made in about["planned_on"]) == len(about["rows"])
    assert "commit" not in about


class Page(HTMLParser):
    """Collects what a page would fetch, its ids, and what is left open."""

    EMPTY = frozenset({"meta", "link", "img", "br", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            elif name.split(":")[-1] in ("src", "href", "srcset", "data", "action"):
                self.references.append(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_needs_no_other_file(made: tuple[Path, Result]) -> None:
    text = (made[0] / "out" / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.tags.count("svg") == 4
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.references  # marks and clips inside the pictures
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert "@import" not in text and "@font-face" not in text
    assert all(found.startswith("url(#") for found in _urls(text))
    assert "prefers-color-scheme: dark" in text and "currentColor" in text


def _urls(text: str) -> Iterator[str]:
    place = text.find("url(")
    while place >= 0:
        yield text[place : place + 5]
        place = text.find("url(", place + 1)


def test_the_pictures_show_every_variant_and_unit(made: tuple[Path, Result]) -> None:
    out = made[0] / "out"
    overhead = (out / "overhead-by-budget.svg").read_text()
    for shown in (*VARIANTS, "budget (MB)", "5.5"):
        assert f">{shown}<" in overhead
    step = (out / "memory-along-step.svg").read_text()
    assert ">monet at 3.500 MB<" in step and ">keeping everything<" in step


def test_a_second_run_plans_nothing(again: Path, made: tuple[Path, Result]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (again / "out" / "cells").iterdir()}
    text = (again / "out" / "sweep.csv").read_text()
    result = sweep_again(again)
    assert result.exit_code == 0, result.output
    assert "12 cells, 0 of them planned now" in result.stdout
    assert {path.name: path.stat().st_mtime_ns for path in (again / "out" / "cells").iterdir()} == before
    assert (again / "out" / "sweep.csv").read_text() == text


def test_missing_and_damaged_cells_are_planned_again(again: Path) -> None:
    cells = again / "out" / "cells"
    removed = next(cells.glob("none-4500000-*"))
    removed.unlink()
    cut = next(cells.glob("monet-3500000-*"))
    cut.write_text(cut.read_text()[:200])
    changed = next(cells.glob("pytorch-5500000-*"))
    changed.write_text(changed.read_text().replace('"status": "heuristic"', '"status": "optimal"'))
    result = sweep_again(again)
    assert result.exit_code == 0, result.output
    assert "12 cells, 3 of them planned now" in result.stdout
    assert removed.exists()
    assert json.loads(cut.read_text())["content"]["status"] == "optimal"
    assert json.loads(changed.read_text())["content"]["status"] == "heuristic"


def test_other_inputs_are_other_cells(again: Path) -> None:
    write_profile(again / "chain.json", layers=2)
    arguments = ("--profile", again / "chain.json", "--budgets", "50%,100%", "--variants", "pytorch")
    result = run(*arguments, "--output", again / "out")
    assert result.exit_code == 0, result.output
    assert "2 cells, 2 of them planned now" in result.stdout
    peak = rows_of(again)[0]["baseline_peak_bytes"]
    assert isinstance(peak, int)
    assert [row["budget_bytes"] for row in rows_of(again)] == [peak // 2, peak]


@pytest.mark.slow
def test_an_error_in_one_cell_loses_no_other(tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "chain.json")
    arguments = ("--profile", profile, "--budgets", "5500kB", "--variants", "pytorch,monet", "--output", tmp_path)
    result = run(*arguments, "--solver", "NONE")
    assert result.exit_code == 1
    assert "no solver 'NONE' is installed" in result.stderr
    about = json.loads((tmp_path / "sweep.json").read_text())
    assert [(row["variant"], row["status"]) for row in about["rows"]] == [("monet", "error"), ("pytorch", "heuristic")]
    assert "no solver" in (tmp_path / "report.html").read_text()
    # It is tried again, the other one is not.
    assert "2 cells, 1 of them planned now" in run(*arguments, "--solver", "NONE").stdout


def test_without_plots_there_are_still_tables(again: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (again / "out" / "report.html").unlink()
    for name in [
        name for name in sys.modules if name.split(".")[0] == "matplotlib" or name == "monet.lab.sweep.figures"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delattr("monet.lab.sweep.figures", raising=False)
    result = sweep_again(again)
    assert result.exit_code == 0, result.output
    assert "pip install matplotlib jinja2" in result.stderr
    assert f"saved {again / 'out' / 'sweep.json'}" in result.stdout
    assert not (again / "out" / "report.html").exists()


def published(run: dict[str, object]) -> dict[str, object]:
    return {"bound_ms": 30.0, "seconds": 86400.0, "infeasible": False, **run}


def test_published_figures_beside_the_profile_are_shown(again: Path) -> None:
    runs = [
        published({"variant": "all", "budget_gib": 3_500_000 / 2**30, "objective_ms": 40.0}),
        published({"variant": "checkmate", "budget_gib": 3_500_000 / 2**30, "objective_ms": 40.0}),
    ]
    reference = {"source": "somebody's <solver>", "runs": {"chain": runs}}
    (again / "reference.json").write_text(json.dumps(reference))
    assert sweep_again(again).exit_code == 0
    text = (again / "out" / "report.html").read_text()
    ours = next(row for row in rows_of(again) if row["variant"] == "monet")["objective_s"]
    assert isinstance(ours, float)
    assert "somebody&#39;s &lt;solver&gt;" in text
    assert f"<td>{ours / 0.040:.4f}</td>" in text
    assert "<td>24.0 h</td>" in text
    (again / "reference.json").write_text("{")
    result = sweep_again(again)
    assert result.exit_code == 0
    assert "holds no published results" in result.stderr
    assert "Beside the published" not in (again / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budgets", "5GB"], "one of them"),
        (["tiny.yaml", "--profile", "chain.json", "--budgets", "5GB"], "one of them"),
        (["tiny.yaml"], "--budgets"),
        (["tiny.yaml", "--budgets", "5GB", "--variants", "monte"], "did you mean monet"),
        (["tiny.yaml", "--budgets", "5GB:1GB:1GB"], "is empty"),
        (["tiny.yaml", "--budgets", "5GB:6GB"], "not a range"),
        (["tiny.yaml", "--budgets", "5GB:6GB:10%"], "mixes bytes and shares"),
        (["tiny.yaml", "--budgets", "5QB"], "5QB"),
        (["tyni.yaml", "--budgets", "5GB"], "did you mean tiny.yaml"),
        (["--profile", "gone.json", "--budgets", "5GB"], "gone.json"),
        (["--profile", "other.json", "--budgets", "5GB"], "monet-profile-1"),
        (["--profile", "chain.json", "--budgets", "5GB", "--measure"], "no model to measure"),
        (["--profile", "chain.json", "--budgets", "5GB", "--exact"], "measured elsewhere"),
        (["tiny.yaml", "--budgets", "5GB", "--output", "chain.json"], "is a file"),
        (["tiny.yaml", "--budgets", "5GB", "--output", "chain.json/x"], "not a folder that can be written to"),
        (["tiny.yaml", "--budgets", "5GB", "--output", "/proc/x"], "proc"),
    ],
)
def test_wrong_usage_is_status_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(tmp_path / "chain.json")
    (tmp_path / "other.json").write_text("{}")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert sorted(os.listdir()) == ["chain.json", "other.json"]


def command(folder: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "monet", "sweep", "--profile", str(folder / "chain.json"), "--budgets", "45%"),
        *("--variants", "pytorch,monet", "--output", str(folder / "out"), "--gap", "0", "--jobs", "2", *more),
    ]


def stopped(folder: Path, number: signal.Signals) -> tuple[int, str]:
    """A sweep whose second cell takes long, ended by a signal to it alone; exit status and stderr."""
    write_profile(folder / "chain.json", layers=200)
    done = subprocess.Popen(
        command(folder, "--time-limit", "60"),
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has Ctrl-C ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    end = time.monotonic() + 30
    while not list((folder / "out").glob("cells/pytorch-*.json")):
        assert done.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)
    children = psutil.Process(done.pid).children(recursive=True)
    assert children
    done.send_signal(number)
    _, text = done.communicate(timeout=20)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert list((folder / "out").glob("cells/monet-*")) == []
    return done.returncode, text


def test_ctrl_c_keeps_finished_cells_and_leaves_no_process(tmp_path: Path) -> None:
    status, text = stopped(tmp_path, signal.SIGINT)
    assert status == 130
    assert "1 finished cells" in text and "goes on from there" in text
    assert "Traceback" not in text
    assert "leaked" not in text
    resumed = subprocess.run(command(tmp_path, "--variants", "pytorch", "--time-limit", "60"), capture_output=True)
    assert b"1 cells, 0 of them planned now" in resumed.stdout


@pytest.mark.slow
def test_a_killed_sweep_leaves_whole_files_and_no_process(tmp_path: Path) -> None:
    status, _ = stopped(tmp_path, signal.SIGKILL)
    assert status == -signal.SIGKILL
    for path in (tmp_path / "out" / "cells").glob("*.json"):
        assert json.loads(path.read_text())["content"]


def test_monet_sweep_is_the_sweep_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["monet-sweep", "--help"])
    with pytest.raises(SystemExit) as ended:
        sweep_main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: monet-sweep [OPTIONS] [CONFIG]")


def test_usage_errors_do_not_import_torch() -> None:
    code = (
        "import contextlib, sys; from monet.cli.main import program\n"
        "with contextlib.suppress(SystemExit): program(['sweep', 'tiny.yaml', '--budgets', '5QB'])\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
