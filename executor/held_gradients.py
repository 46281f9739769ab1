"""Gradients that a training loop still holds where the plan counts on their memory: found, and told once."""

from __future__ import annotations

import logging

import torch

from monet.executor.runner import Runner
from monet.plans.format import KEPT

logger = logging.getLogger(__name__)


class HeldGradients:
    """Says once by how much a loop's order of ``zero_grad`` takes a step above the plan's peak. Results are right
    either way.

    A plan for gradients that are freed counts on their memory from the forward pass on, one for gradients that are kept
    from the backward pass on.
    """

    def __init__(self, model: torch.nn.Module, runner: Runner) -> None:
        self._owners = [module._parameters for module in model.modules()]
        self._runner = runner
        self._kept = runner.plan.model.get("gradients") == KEPT
        self._counted_buckets = "buckets" in runner.plan.fixed
        self._told = False

    def beside_arena(self) -> int:
        """Bytes of gradients, before a forward pass, that no arena of this module has."""
        if self._told or self._kept:
            return 0
        arena = self._runner.arena
        return self._bytes([g for g in self._all() if arena is None or not arena.contains(g.data_ptr())])

    def tell_after_forward(self, beside_bytes: int) -> None:
        """``beside_bytes``: what ``beside_arena`` found before it."""
        held_bytes = beside_bytes + self._runner.held_bytes
        if held_bytes and not self._told:
            self._told = True
            logger.warning(
                "gradients of an earlier step are still held when the next forward pass begins: %d bytes, by which "
                "the peak is above the promise. Call optimizer.zero_grad() before the forward pass; if they must stay "
                "until the backward pass, plan with gradients=%r; to add gradients up, plan with accumulate=True",
                held_bytes, KEPT,
            )  # fmt: skip

    def tell_before_backward(self) -> None:
        if not self._kept or self._told:
            return
        held_bytes = self._bytes(self._all())
        if held_bytes:
            self._told = True
            logger.warning(
                "parameters have gradients when the backward pass makes new ones: %d bytes, by which the peak is "
                "above the promise. Call optimizer.zero_grad(set_to_none=True) before the backward pass; to add "
                "gradients up, plan with accumulate=True", held_bytes,
            )  # fmt: skip

    def _all(self) -> list[torch.Tensor]:
        """But for those that are views of the buckets of ``DistributedDataParallel``, where the plan counts these, and
        for sparse ones, which are no plan's."""
        parameters = (p for owner in self._owners for p in owner.values() if p is not None and p.is_leaf)
        gradients = [g for p in parameters if (g := p.grad) is not None and g.layout is torch.strided]
        return [g for g in gradients if not g._is_view()] if self._counted_buckets else gradients

    def _bytes(self, gradients: list[torch.Tensor]) -> int:
        storages = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in gradients}
        return sum(storages.values())
