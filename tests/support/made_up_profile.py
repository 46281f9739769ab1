"""A small made-up profile in the format ``monet-profile-1``: a chain of convolutions and ReLUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TENSOR_BYTES = 1_000_000
WEIGHT_BYTES = 10_000


def write_profile(path: Path, layers: int = 3) -> Path:
    """``layers`` times a convolution and a ReLU, each with two or more implementations. Costs are made up:
    the second algorithm of a convolution takes half the time and a workspace of half a tensor."""
    forward: list[dict[str, Any]] = []
    for k in range(layers):
        conv, relu = 2 * k, 2 * k + 1
        times = 4.0 + k % 3
        forward.append(
            {
                "id": conv, "op": "_convolution", "inputs": [conv - 1] if k else [], "bytes": TENSOR_BYTES, "saved": [],
                "impls": [
                    {"name": "gemm", "ms": times, "workspace": 0, "aliased": 0},
                    {"name": "implicit_gemm", "ms": times / 2, "workspace": TENSOR_BYTES // 2, "aliased": 0},
                ],
            }
        )  # fmt: skip
        forward.append(
            {
                "id": relu, "op": "relu_", "inputs": [conv], "bytes": TENSOR_BYTES,
                "saved": [{"id": f"s{relu}", "kind": "sign_bits", "bytes": TENSOR_BYTES // 32}],
                "impls": [
                    {"name": "plain", "ms": 1.0, "workspace": 0, "aliased": 0},
                    {"name": "inplace", "ms": 1.0, "workspace": 0, "aliased": TENSOR_BYTES, "overwrites": conv},
                    {"name": "save", "ms": 1.5, "workspace": 0, "aliased": 0, "saves": f"s{relu}"},
                ],
            }
        )  # fmt: skip
    backward: list[dict[str, Any]] = []

    def gradient(of: int, op: str, part: str, makes: list[int], parameters: int, impls: list[dict[str, Any]]) -> None:
        backward.append(
            {
                "id": len(backward), "of": of, "op": op, "part": part, "grad_inputs": makes,
                "grad_input_bytes": [TENSOR_BYTES] * len(makes), "param_grad_bytes": parameters, "noop": False,
                "impls": [{"ms": 1.0, "workspace": 0, "aliased": 0, **q} for q in impls],
            }
        )  # fmt: skip

    for k in reversed(range(layers)):
        conv, relu = 2 * k, 2 * k + 1
        gradient(
            relu, "relu_", "all", [conv], 0,
            [
                {"name": "input", "reads": [conv], "aliased": TENSOR_BYTES},
                {"name": "output", "reads": [relu], "aliased": TENSOR_BYTES},
                {"name": "intermediate", "reads": [f"s{relu}"], "aliased": TENSOR_BYTES},
            ],
        )  # fmt: skip
        reads = [conv - 1] if k else []
        gradient(conv, "_convolution", "params", [], WEIGHT_BYTES, [
            {"name": "algo_0", "reads": reads, "ms": 5.0},
            {"name": "algo_1", "reads": reads, "ms": 3.0, "workspace": TENSOR_BYTES // 2},
        ])  # fmt: skip
        if k:
            gradient(conv, "_convolution", "input", [conv - 1], 0, [{"name": "algo_0", "reads": [], "ms": 4.0}])
    document = {
        "format": "monet-profile-1",
        "model": "chain",
        "batch": 4,
        "dtype": "float32",
        "input": {"shape": [4], "bytes": TENSOR_BYTES},
        "params": [{"id": f"p{k}", "bytes": WEIGHT_BYTES, "grad": True} for k in range(layers)],
        "outputs": [2 * layers - 1],
        "forward": forward,
        "backward": backward,
    }
    path.write_text(json.dumps(document))
    return path
