"""Run by a test in a process of its own: measured and promised peak of one whole step, in bytes."""

from __future__ import annotations

import gc
import sys

import torch
from trainer_cases import OPTIMIZERS, case_loss, case_model, images, optimize_case

from monet.native import allocator


def _squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """PyTorch makes its mean in the memory of all squares."""
    return torch.nn.functional.mse_loss(outputs, targets[:, None].float().expand_as(outputs))


def main(optimizer: str, loss: str) -> None:
    assert allocator.available()
    model = case_model("residual")
    losses = {"cross entropy": case_loss, "mean squared error": _squared}
    trainer = optimize_case("residual", model, OPTIMIZERS[optimizer], loss_fn=losses[loss])
    gc.collect()
    # What the step counts and is there already. The optimiser's state is not: the first step makes it.
    held = [*model.parameters(), *model.buffers(), *trainer._step.captured.constants.values()]
    other = allocator.live_bytes() - sum(t.untyped_storage().nbytes() for t in held)
    peaks = []
    for seed in range(2):
        inputs, targets = images(seed)
        allocator.reset_peak()
        results = trainer(inputs, targets)
        peaks.append(allocator.peak_bytes() - other)
        del inputs, targets, results
    assert peaks[0] == peaks[1], peaks
    print(peaks[1], trainer.plan.peak_bytes)


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1], sys.argv[2])
