"""The same steps on a CUDA device: results equal eager's, and the reported peak is PyTorch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import Residual, Transformer

import monet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_convolutional_step_on_cuda() -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    model, x = Residual(16).cuda(), torch.randn(8, 3, 32, 32, device="cuda")
    _compare(model, x)


def test_transformer_with_dropout_on_cuda() -> None:
    torch.manual_seed(0)
    _compare(Transformer().cuda(), torch.randint(0, 50, (3, 9), device="cuda"))


def _compare(model: torch.nn.Module, x: torch.Tensor) -> None:
    for budget in ("10GB", "90%"):
        plan = monet.plan(model, (x,), {}, budget=budget, time_limit_s=20)
        eager, planned = copy.deepcopy(model), monet.MonetModule(copy.deepcopy(model), plan)
        for step in range(3):
            outputs = []
            for module in (eager, planned):
                module.zero_grad(set_to_none=True)
                torch.manual_seed(step)
                out = module(x)
                out.float().square().sum().backward()
                outputs.append(out.detach())
            torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)
            for p, q in zip(eager.parameters(), planned.parameters(), strict=True):
                torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


def test_reported_peak_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Residual(16).cuda(), torch.randn(8, 3, 32, 32, device="cuda")
    planned = monet.MonetModule(model, monet.plan(model, (x,), {}, budget="10GB", time_limit_s=20))
    assert planned._step.runner.arena is None
    torch.cuda.reset_peak_memory_stats()
    planned(x).sum().backward()
    assert torch.cuda.max_memory_allocated() > 0
