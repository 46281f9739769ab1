"""Published profiles (format ``monet-profile-1``) as problems.

The format is described beside the profiles, which are not part of this project. What a profile says and a
``Problem`` says in another way:

* A saving implementation (``save``, ``save_inplace``) is an intermediate made after a plain run: making it takes
  the difference ``save − plain``, and the saving implementation's workspace. Sign bits are read off the output; a
  pool index needs the input as well.
* ``recompute_ms`` of batch norm is its time with the statistics of the forward pass, which are part of fixed memory.
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
"""Names of what PyTorch runs unasked; the first of them that an operator has is its default. A ReLU's backward has
another one before these."""
KINDS = {
    "_convolution": "convolution",
    "convolution": "convolution",
    **dict.fromkeys(("addmm", "mm", "bmm", "baddbmm"), "matmul"),
}
"""Kinds of forward operators by ``op``, which is aten's name."""


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
        tensors=tuple(Tensor(tensor_id(f["id"]), f["bytes"]) for f in forward),
        forward=tuple(_forward(f) for f in forward),
        intermediates=tuple(_intermediate(f, saved) for f in forward for saved in f["saved"]),
        backward=_backward(document, (relu_reads, *BACKWARD_DEFAULTS)),
        fixed_bytes=document["input"]["bytes"] + sum(parameter["bytes"] for parameter in document["params"]),
    )


def tensor_id(identity: int | str) -> str:
    """The id of a tensor or intermediate in a ``Problem``: forward ids are integers, and 3 becomes ``f3``; ids of
    what is saved are text already (``s3``). A forward operator has the id of its one output.
    """
    return f"f{identity}" if isinstance(identity, int) else identity


def _forward(f: dict[str, Any]) -> ForwardOperator:
    return ForwardOperator(
        id=tensor_id(f["id"]),
        inputs=tuple(tensor_id(i) for i in f["inputs"]),
        outputs=(tensor_id(f["id"]),),
        implementations=tuple(
            ForwardImplementation(
                name=q["name"],
                time_s=q["ms"] / 1e3,
                workspace_bytes=q["workspace"],
                overwrites=tensor_id(q["overwrites"]) if "overwrites" in q else None,
                aliased_bytes=q["aliased"],
                recompute_time_s=q["recompute_ms"] / 1e3 if "recompute_ms" in q else None,
                recompute_workspace_bytes=q.get("recompute_workspace"),
            )
            for q in _default_first(f["impls"], FORWARD_DEFAULTS)
            if not q.get("saves")
        ),
        kind=KINDS.get(f.get("op", ""), ""),
    )


def _intermediate(f: dict[str, Any], saved: dict[str, Any]) -> Intermediate:
    saving = [q for q in f["impls"] if q.get("saves") == saved["id"]]
    plain = min(q["ms"] for q in f["impls"] if q["name"] == "plain")
    reads = [tensor_id(f["id"])]
    if saved["kind"] == "pool_index":
        reads += [tensor_id(i) for i in f["inputs"]]
    return Intermediate(
        id=saved["id"],
        bytes=saved["bytes"],
        operator=tensor_id(f["id"]),
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
    """Walks the backward pass once to count the bytes of live gradients: an activation's until the operator that made
    the activation has used it, a parameter's to the end."""
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
                        q["name"], q["ms"] / 1e3, tuple(map(tensor_id, q["reads"])), q["workspace"], q["aliased"]
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
