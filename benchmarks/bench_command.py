"""From the command to its first plan, everything included: imports, native libraries, the model, capture and search.

python benchmarks/bench_command.py [--config densenet121.yaml]

``readme``: seconds of the README's command, ``--measure`` included, with an empty cache and with the one it leaves, in
turn; ``unmeasured``: with that cache, without ``--measure``. ``first_plan_s``: of each shipped configuration, at 70 %
and with an empty cache, until a plan by estimates is said; until the plan itself, where measuring takes no longer than
that; until it is said that nothing fits, where nothing does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record

from monet.models.config import shipped_configs

README = ("tiny.yaml", "--budget", "85%", "--quiet")
TURNS = 3
SAID = (b"by estimates: ", b"status   ", b"error: ")


def _started(arguments: tuple[str, ...], folder: Path, cache: str) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    (folder / cache).mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "monet", "plan", *arguments, "--output", str(folder / "plan.json")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**environment, "MONET_CACHE": str(folder / cache)},
    )  # fmt: skip


def _command_s(arguments: tuple[str, ...], folder: Path, cache: str) -> float:
    began = time.perf_counter()
    said, _ = (process := _started(arguments, folder, cache)).communicate()
    assert process.returncode == 0, said.decode()
    return time.perf_counter() - began


def _first_plan_s(config: str, folder: Path) -> float:
    began = time.perf_counter()
    process, said = _started((config, "--budget", "70%"), folder, config), b""
    assert process.stdout is not None
    while not any(text in said for text in SAID):
        more = os.read(process.stdout.fileno(), 1 << 16)
        assert more, said.decode()
        said += more
    seconds = time.perf_counter() - began
    process.kill()
    process.communicate()
    return seconds


@click.command()
@click.option("--config", "configs", multiple=True, type=click.Choice(shipped_configs()), help="Only these.")
def main(configs: tuple[str, ...]) -> None:
    rows: dict[str, Any] = record.known("command")
    with TemporaryDirectory() as place:
        folder = Path(place)
        if not configs:
            _command_s(README, folder, "bytecode")  # written by the first process after an installation
            turns: dict[str, list[float]] = {"cold": [], "warm": [], "unmeasured": []}
            for turn in range(TURNS):
                for when, of in turns.items():
                    options = README if when == "unmeasured" else (*README, "--measure")
                    of.append(_command_s(options, folder, f"turn {turn}"))
            rows["readme"] = turns
            click.echo(f"readme: {turns}")
        found = rows.setdefault("first_plan_s", {})
        for config in configs or shipped_configs():
            found[config] = _first_plan_s(config, folder)
            click.echo(f"{config}: {found[config]:.1f} s")
            record.write("command", rows)


if __name__ == "__main__":
    main()
