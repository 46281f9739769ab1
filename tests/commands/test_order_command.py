"""``monet order``: a graph in, an order out; what is wrong with other files; and Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from order_problems import document, joined_graph, least_peak, peak, with_recomputation

from monet.cli.main import program
from monet.planner.order import METHODS
from monet.planner.order.graph import OrderGraph

DOCUMENT = {
    "ops": [
        {"name": "a", "op": "aten.a", "ins": [0], "new": [1], "mut": [], "view": False},
        {"name": "b", "ins": [1], "new": [], "mut": [0], "view": False, "workspace": 5},
    ],
    "size": {"0": 100, "1": 8},
    "inputs": [0],
    "outputs": [0],
}


def test_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "graph.json", tmp_path / "out.json"
    path.write_text(json.dumps(DOCUMENT))
    result = CliRunner().invoke(program, ["order", str(path), "--json", str(out)])
    assert result.exit_code == 0, result.output
    assert "(13 bytes), no order needs less" in result.stdout
    found = json.loads(out.read_text())
    assert (found["order"], found["peak_bytes"], found["bound_bytes"]) == ([0, 1], 13, 13)
    assert found["captured_order_peak_bytes"] == found["program_order_peak_bytes"] == 13


def test_help_explains_every_method() -> None:
    text = " ".join(CliRunner().invoke(program, ["order", "--help"], terminal_width=500).stdout.split())
    assert all(f"{method} {about}" in text for method, about in METHODS.items())


def test_the_captured_order_alone(tmp_path: Path) -> None:
    graph = joined_graph(random.Random(5), 3, 3)
    path, out = tmp_path / "graph.json", tmp_path / "out.json"
    path.write_text(document(graph))
    result = CliRunner().invoke(program, ["order", str(path), "--order", "captured", "--json", str(out)])
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["order"] == list(range(len(graph.nodes))) and written["method"] == "captured"
    assert written["peak_bytes"] == written["captured_order_peak_bytes"] == peak(graph, written["order"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": {"0": 100}}, "storage 1, made by a, has no size"),
        ({"size": {"0": 100, "1": -8}}, "size.1"),
        ({"inputs": []}, "a uses storage 0"),
        ({"ops": [{"name": "a"}]}, "ops.0.ins"),
        ({"ops": 3}, "ops"),
    ],
)
def test_a_wrong_graph_is_wrong_usage(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({**DOCUMENT, **change}))
    result = CliRunner().invoke(program, ["order", str(path)])
    assert result.exit_code == 2 and message in result.stderr and str(path) in result.stderr


def test_what_is_no_file_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(program, ["order", str(tmp_path / "none.json")])
    assert result.exit_code == 2 and "cannot be read" in result.stderr
    result = CliRunner().invoke(program, ["order", str(tmp_path)])
    assert result.exit_code == 2 and "cannot be read" in result.stderr


def test_the_command_by_segments(tmp_path: Path) -> None:
    graph = joined_graph(random.Random(5), 3, 3)
    (tmp_path / "graph.json").write_text(document(graph))
    result = CliRunner().invoke(program, ["order", str(tmp_path / "graph.json"), "--order", "roam"])
    assert result.exit_code == 0, result.output
    assert f"({least_peak(graph)} bytes), no order needs less" in result.stdout
    assert result.stderr == ""  # no terminal, no progress


def test_ctrl_c_prints_and_writes_the_best_order(tmp_path: Path) -> None:
    graph = with_recomputation(random.Random(0), 80)
    (tmp_path / "graph.json").write_text(document(graph))
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "monet", "order", "-v", "graph.json", "--time-limit", "600", "--json", "out.json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        text = ""
        while "delayed-update: " not in text and process.poll() is None:
            text = (tmp_path / "stderr").read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=60)[0]
    text = (tmp_path / "stderr").read_text()
    assert process.returncode == 130, text
    assert text.endswith("monet: interrupted; this is the best order found by then\n") and "Traceback" not in text
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["interrupted"] and written["peak_bytes"] == peak(graph, written["order"])
    assert f"({written['peak_bytes']} bytes)" in printed


def test_ctrl_c_before_there_is_an_order_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(graph: OrderGraph) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monet.planner.order.whole.forced_live", interrupt)
    (tmp_path / "graph.json").write_text(document(joined_graph(random.Random(5), 2, 3)))
    out = tmp_path / "out.json"
    result = CliRunner().invoke(program, ["order", str(tmp_path / "graph.json"), "--json", str(out)])
    assert result.exit_code == 130 and result.stderr == "monet: interrupted\n"
    assert not out.exists()
