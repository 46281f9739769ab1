"""``monet fit`` from its command line: exit status, text, data, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from interrupts import default_interrupts

from monet.cli.main import program

ESTIMATE = ("--estimate", "--rates", "300GFLOPS,20GB/s")
SETTINGS = ("--time-limit", "1", "--quiet")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(program, ["fit", *map(str, arguments)])


def test_an_answer_as_text_and_data(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    done = run("tiny.yaml", "--memory", "16GB", "--no-batch", "--json", path, *ESTIMATE, *SETTINGS)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Sequential fits into 16.000 GB as it is.\n")
    assert "All figures are estimates: nothing was run (estimated by 3e+11 FLOP/s" in done.stdout
    answer = json.loads(path.read_text())
    assert (answer["fits"], answer["overhead"], answer["status"]) == ("as it is", 0.0, "complete")
    assert answer["memory_bytes"] == 16 * 10**9 and answer["smallest"]["budget_bytes"] < answer["eager_peak_bytes"]
    assert answer["points"][0]["budget_bytes"] == answer["smallest"]["budget_bytes"]


@pytest.mark.slow
def test_what_does_not_fit_is_a_status() -> None:
    done = run("tiny.yaml", "--memory", "1MB", "--no-batch", *ESTIMATE, *SETTINGS)
    assert done.exit_code == 1 and "does not fit into 1.000 MB: the smallest budget" in done.stdout


@pytest.mark.slow
def test_a_configuration_in_half_precision(tmp_path: Path) -> None:
    """Fake parameters in another dtype, with weights that are tied."""
    pytest.importorskip("transformers")
    config = tmp_path / "gpt.yaml"
    config.write_text(
        "model: monet.models.transformers:random_weights\n"
        "kwargs: {architecture: GPT2LMHeadModel, n_embd: 32, n_layer: 1, n_head: 2, vocab_size: 100}\n"
        "dtype: bfloat16\n"
        "inputs:\n"
        "  input_ids: {shape: [2, 16], dtype: int64, high: 100}\n"
        "  labels: {shape: [2, 16], dtype: int64, high: 100}\n"
    )
    done = run(config, "--memory", "1GB", "--no-batch", *ESTIMATE, *SETTINGS)
    assert done.exit_code == 0 and "fits into 1.000 GB as it is" in done.stdout, done.output


@pytest.mark.slow
def test_a_model_that_looks_at_its_values_is_made_of_real_tensors(tmp_path: Path) -> None:
    """As torchvision's ViT does; that is said."""
    (tmp_path / "looking.py").write_text(
        "import torch\n"
        "def model():\n"
        "    width = int(torch.linspace(0, 8, 3)[-1].item())\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh())\n"
    )
    (tmp_path / "looking.yaml").write_text("model: looking:model\ninputs: [{shape: [16, 4]}]\n")
    done = subprocess.run(
        [sys.executable, "-m", "monet", "fit", "looking.yaml", "--memory", "1GB", *ESTIMATE, "--time-limit", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "cannot be made without its weights" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "50%"), "give bytes"),
        (("--memory", "16GB", "--rates", "1GFLOPS,1GB/s"), "--rates goes with --estimate"),
        (("--memory", "16GB", "--estimate", "--rates", "fast"), "is no rate"),
        (("--on", "h1000"), "no machine is known as 'h1000'; known are p100"),
        (("--on", "8-core"), "how much memory is there"),
        ((), "how much memory is there"),
        ((), "--memory"),
    ],
)
def test_wrong_usage(options: tuple[str, ...], said: str) -> None:
    done = run("tiny.yaml", *options)
    assert done.exit_code == 2 and said in done.output


@pytest.mark.slow
def test_interrupted_with_what_is_known(tmp_path: Path) -> None:
    """At the first line about a budget, after eager's peak and the smallest budget."""
    path = tmp_path / "fit.json"
    command = [sys.executable, "-m", "monet", "fit", "tiny.yaml", "--memory", "16GB", *ESTIMATE, "--json", str(path)]
    process = subprocess.Popen(
        [*command, "--time-limit", "20"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=default_interrupts,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    while "planning for" not in said:
        letter = process.stderr.read(1)
        assert letter, f"ended before it planned: {said}"
        said += letter
    process.send_signal(signal.SIGINT)
    printed, rest = process.communicate()
    assert process.returncode == 130, said + rest
    assert "Interrupted: this is what was known by then." in printed and "smallest budget" in printed
    answer = json.loads(path.read_text())
    assert answer["status"] == "interrupted" and answer["batch"] is None
