"""Products, fused attention and convolutions are known by what they call, in a captured model and in its problem."""

from __future__ import annotations

import pytest
import torch
from small_models import Residual
from torch import nn

from monet.base.graph import Operator
from monet.capture import capture
from monet.ops.kinds import kind
from monet.pipeline.preparation import prepare

aten = torch.ops.aten


class Attending(nn.Module):
    """Fused attention, batched products and linear layers, an embedding, norms and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.query, self.free = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        q = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
        x = nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)
        x = nn.functional.gelu(self.free(x))
        return torch.softmax(torch.einsum("bij,bkj->bik", x, x), -1)


MODELS = {
    "attention": (Attending(), torch.randint(0, 11, (2, 16))),
    "convolutions": (Residual(), torch.randn(2, 3, 16, 16)),
}
KINDS = {
    "aten.addmm.default": "matmul",
    "aten.mm.default": "matmul",
    "aten.bmm.default": "matmul",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "attention",
    "aten.convolution.default": "convolution",
}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("attention", {"addmm": 1, "mm": 1, "bmm": 1, "_scaled_dot_product_flash_attention_for_cpu": 1}),
        ("convolutions", {"convolution": 3, "addmm": 1}),
    ],
)
def test_kinds_of_a_captured_model(model: str, expected: dict[str, int]) -> None:
    module, x = MODELS[model]
    prepared = prepare(module, (x,), {})
    targets = {operator.name: str(operator.target) for operator in prepared.lowered.catalogue.graph.forward}
    found = dict.fromkeys(expected, 0)
    for operator in prepared.problem.forward:
        assert operator.kind == KINDS.get(targets[operator.id], ""), targets[operator.id]
        if operator.kind:
            found[targets[operator.id].split(".")[1]] += 1
    assert found == expected


def test_names_do_not_matter() -> None:
    """A ReLU whose node is called after a product is none."""
    graph = capture(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (torch.randn(2, 3),)).graph
    found = {str(operator.target): kind(operator) for operator in graph.forward if not operator.view}
    assert found == {"aten.addmm.default": "matmul", "aten.relu.default": ""}
    assert kind(Operator.writer("mm", aten.relu_.default, None)) == ""
    assert kind(Operator.writer("relu", aten.mm.out, None)) == "matmul"
    assert kind(Operator.writer("mm", torch.relu)) == ""


@pytest.mark.parametrize("name", ["flash_attention", "efficient_attention", "cudnn_attention"])
def test_attention_on_a_gpu_is_known_without_a_record(name: str) -> None:
    assert kind(Operator.writer("x", getattr(aten, f"_scaled_dot_product_{name}").default)) == "attention"
