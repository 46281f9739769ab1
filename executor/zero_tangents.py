"""Gradients that also come from outputs which the loss leaves out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set

import torch

from monet.graph import Graph

logger = logging.getLogger(__name__)


class ZeroTangents:
    """A plan's backward pass is one: what the loss leaves out takes part with tangents of zeros. That adds nothing,
    unless a derivative there is infinite (a square root at 0), where eager does not go and the product is NaN."""

    def __init__(self, graph: Graph) -> None:
        self._said = False
        self._targets = {source.value: source.target for source in graph.sources}

    def check(self, gradients: Mapping[str, torch.Tensor], behind: Mapping[str, Set[str]], reached: Set[str]) -> None:
        """Says once that a gradient is not finite. ``gradients``, ``behind``: by source, the latter the tangents that
        it comes from; ``reached``: those that the loss gave."""
        if self._said:
            return
        for name, gradient in gradients.items():
            if behind[name] & reached and behind[name] - reached and not torch.isfinite(gradient).all():
                self._said = True
                logger.warning(
                    "the gradient of %s is not finite, and it also comes from an output that the loss leaves out: "
                    "where a derivative is infinite there, it is NaN in the planned step and not in eager's. Return "
                    "that output detached, or leave it out", self._targets.get(name, name),
                )  # fmt: skip
                return
