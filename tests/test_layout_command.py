"""``monet layout``: a file in, offsets out, and what is wrong with other files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from monet.cli import program

LINES = ["id,lower,upper,size", "7,0,4,100", "3,2,6,50", "5,4,8,100"]


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(program, ["layout", str(path), *arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_offsets_by_id(path: Path) -> None:
    out = path.with_name("out.json")
    result = run(path, "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "3 buffers" in result.stdout and "(150 bytes), 0.00% above the bound of 150 bytes" in result.stdout
    found = json.loads(out.read_text())
    assert set(found) == {"offsets", "peak_bytes", "bound_bytes", "method", "seconds", "interrupted"}
    assert found["peak_bytes"] == found["bound_bytes"] == 150
    assert found["interrupted"] is False
    assert found["offsets"]["7"] == found["offsets"]["5"] and set(found["offsets"]) == {"3", "5", "7"}


def test_alignment(path: Path) -> None:
    result = run(path, "--alignment", "64")
    assert result.exit_code == 0 and "(192 bytes)" in result.stdout


def test_a_capacity_that_is_too_small_is_status_1(path: Path) -> None:
    assert run(path, "--capacity", "150").exit_code == 0
    result = run(path, "--capacity", "140")
    assert result.exit_code == 1 and "10 bytes more than the capacity" in result.stderr


def test_gaps_and_offsets(path: Path) -> None:
    path.write_text("id,lower,upper,size,offset,gaps\n0,0,9,10,,3-6\n1,3,6,10,,\n2,0,1,4,20,\n")
    result = run(path)
    assert result.exit_code == 0 and "(24 bytes), 0.00% above" in result.stdout


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,lower,upper", "1,2,3"], "has no column size; it needs id,lower,upper,size"),
        ([], "has no column id, lower, upper, size"),
        ([*LINES, "8,1,x,9"], ":5: upper is 'x', not a whole number"),
        ([*LINES, "8,1"], ":5: size is None, not a whole number"),
        (["id,lower,upper,size,gaps", "1,0,9,4,3"], ":2: gaps is '', not a whole number"),
    ],
)
def test_a_wrong_file_is_wrong_usage(path: Path, lines: list[str], message: str) -> None:
    path.write_text("\n".join(lines) + "\n")
    result = run(path)
    assert result.exit_code == 2 and message in result.stderr and str(path) in result.stderr


def test_wrong_lifetimes_are_invalid(path: Path) -> None:
    path.write_text("\n".join([*LINES, "7,0,1,8"]) + "\n")
    result = run(path)
    assert result.exit_code == 1 and "buffer id 7 occurs twice" in result.stderr


def test_no_file(tmp_path: Path) -> None:
    assert run(tmp_path / "none.csv").exit_code == 2
    assert run(tmp_path).exit_code == 2
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    assert run(binary).exit_code == 2
