"""Published profiles (format ``monet-profile-1``) as problems, and solutions back in their format.

The format is described beside the profiles, which are not part of this project. What it says and a
``Problem`` cannot say directly:

* A saving implementation (``save``, ``save_inplace``) is an intermediate made after a plain run: it costs
  the difference ``save − plain``, and its workspace. Sign bits are read off the output; a pool index
  needs the input as well.
* ``recompute_ms`` of batch norm: statistics are reused, and are part of fixed memory.
* Parameter gradients stay once they are made.
* Which implementation is PyTorch's own: it comes first here, as in a captured problem. The evidence is in
  docs/baselines.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monet.errors import ConfigError
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.published.document import check_document

FORWARD_DEFAULTS = ("plain", "implicit_precomp_gemm")
BACKWARD_DEFAULTS = ("plain", "algo_1", "input", "output")
"""Names of what PyTorch runs unasked, the earlier before the later; a ReLU has its own."""


def load_published(path: str | Path, *, relu_reads: str = "output") -> Problem:
    """Reads a profile; times become seconds. The first implementation of each operator is PyTorch's default.

    ``relu_reads``: what the default backward of a ReLU reads. PyTorch's reads the ``output``; most variants of the
    published ablation start from one that reads the ``input``.

    Raises:
        ConfigError: the file is not a ``monet-profile-1`` document; the message says what is wrong, and where.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read a published profile from {path}: {error}") from error
    check_document(document, str(path))
    forward = document["forward"]
    return Problem(
        name=f"{document['model']} batch {document['batch']}",
        tensors=tuple(Tensor(_tensor(f["id"]), f["bytes"]) for f in forward),
        forward=tuple(_forward(f) for f in forward),
        intermediates=tuple(_intermediate(f, saved) for f in forward for saved in f["saved"]),
        backward=_backward(document, (relu_reads, *BACKWARD_DEFAULTS)),
        fixed_bytes=document["input"]["bytes"] + sum(parameter["bytes"] for parameter in document["params"]),
    )


def _tensor(identity: int | str) -> str:
    """Forward ids are integers and become ``f3``; saved ids are ``s3`` already."""
    return f"f{identity}" if isinstance(identity, int) else identity


def _forward(f: dict[str, Any]) -> ForwardOperator:
    return ForwardOperator(
        id=_tensor(f["id"]),
        inputs=tuple(_tensor(i) for i in f["inputs"]),
        outputs=(_tensor(f["id"]),),
        implementations=tuple(
            ForwardImplementation(
                name=q["name"],
                time_s=q["ms"] / 1e3,
                workspace_bytes=q["workspace"],
                overwrites=_tensor(q["overwrites"]) if "overwrites" in q else None,
                aliased_bytes=q["aliased"],
                recompute_time_s=q["recompute_ms"] / 1e3 if "recompute_ms" in q else None,
                recompute_workspace_bytes=q.get("recompute_workspace"),
            )
            for q in _default_first(f["impls"], FORWARD_DEFAULTS)
            if not q.get("saves")
        ),
    )


def _intermediate(f: dict[str, Any], saved: dict[str, Any]) -> Intermediate:
    saving = [q for q in f["impls"] if q.get("saves") == saved["id"]]
    plain = min(q["ms"] for q in f["impls"] if q["name"] == "plain")
    reads = [_tensor(f["id"])]
    if saved["kind"] == "pool_index":
        reads += [_tensor(i) for i in f["inputs"]]
    return Intermediate(
        id=saved["id"],
        bytes=saved["bytes"],
        operator=_tensor(f["id"]),
        reads=tuple(reads),
        time_s=max(0.0, min(q["ms"] for q in saving) - plain) / 1e3,
        workspace_bytes=max(0, min(q["workspace"] for q in saving)),
        kind={"sign_bits": "sign-bits", "pool_index": "pool-index"}[saved["kind"]],
    )


def _default_first(implementations: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The default in front, the others in their order; the first stays in front where no name is known."""
    offered = {q["name"] for q in implementations}
    default = next((name for name in names if name in offered), None)
    return sorted(implementations, key=lambda q: q["name"] != default)


def _backward(document: dict[str, Any], relu_defaults: tuple[str, ...]) -> tuple[BackwardOperator, ...]:
    """Walks the backward pass once to count live activation gradients and parameter gradients."""
    size = {f["id"]: f["bytes"] for f in document["forward"]}
    gradients = {identity: size[identity] for identity in document["outputs"]}
    parameters = 0
    operators = []
    for b in document["backward"]:
        before = sum(gradients.values()) + parameters
        made = sum(b["grad_input_bytes"]) + b["param_grad_bytes"]
        operators.append(
            BackwardOperator(
                id=f"b{b['id']}",
                implementations=tuple(
                    BackwardImplementation(
                        q["name"], q["ms"] / 1e3, tuple(map(_tensor, q["reads"])), q["workspace"], q["aliased"]
                    )
                    for q in _default_first(
                        b["impls"], relu_defaults if b["op"].startswith("relu") else BACKWARD_DEFAULTS
                    )
                ),
                live_before_bytes=before,
                live_during_bytes=before + made,
            )
        )
        parameters += b["param_grad_bytes"]
        gradients |= dict(zip(b["grad_inputs"], b["grad_input_bytes"], strict=True))
        if b["part"] != "params":
            gradients.pop(b["of"], None)
    return tuple(operators)
