"""What users do by hand: ``torch.utils.checkpoint`` around repeated blocks.

    forward     e [a b c] [a b c] [a b c] h      kept: what crosses a bracket, and all outside of blocks
    backward    h (a b c again) c b a (a b c again) c b a (a b c again) c b a e

Blocks are found in the forward pass (``blocks``); what runs again, and when, is as for ``segments``. Chen et al. 2016
is the method; that some results inside a block are worth keeping (``selective``) is from Korthikanti et al. 2022,
*Reducing Activation Recomputation in Large Transformer Models*, where only attention's softmax and what is around it
are run again. The policy here is the usual one with PyTorch's ``create_selective_checkpoint_contexts``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from monet.errors import ConfigError, InfeasibleBudget
from monet.planner.baselines.blocks import Repetition, repeated_blocks
from monet.planner.baselines.runs import cheapest, one_pass, replayed
from monet.planner.baselines.segments import numbers_to_try, run_again
from monet.planner.problem import Problem
from monet.planner.solution import Solution

SAVED = ("matmul", "attention", "convolution")
"""Kinds of operators whose results ``selective`` keeps."""


def block(problem: Problem, budget_bytes: int) -> Solution:
    """Each repeated block run again, once: ``torch.utils.checkpoint`` around every layer.

    Kept: what crosses a block's border, all outside of blocks, and what is pinned or cannot be run again. The rest of
    a block is run again, by defaults, before the first backward operator that reads one of its tensors.

    Raises:
        InfeasibleBudget: this policy, which does not look at the budget, needs more than it; or nothing repeats, and
            then no smallest budget is known.
    """
    begun = time.monotonic()
    forward, stages = run_again(problem, _segments(problem, _blocks(problem), None))
    return one_pass(problem, "running repeated blocks again", budget_bytes, forward, stages, begun)


def sqrt_n_blocks(problem: Problem, budget_bytes: int, *, groups: int | None = None) -> Solution:
    """As ``block``, around groups of blocks: of n blocks, about √n together (Chen et al. 2016).

    ``groups``: how many of each repetition, at most one a block; None tries √n and a few other numbers, and takes the
    cheapest plan that fits. Each is tried twice: with all groups run again, and without the last, of which all is kept
    then, as ``torch.utils.checkpoint.checkpoint_sequential`` does.

    Raises:
        ConfigError: ``groups`` is less than 1.
        InfeasibleBudget: none of these fits, or nothing repeats.
    """
    begun = time.monotonic()
    if groups is not None and groups < 1:
        raise ConfigError(f"blocks are in 1 group or more, not {groups}")
    blocks = _blocks(problem)
    found: list[Solution] = []
    for number in numbers_to_try(max(one.count for one in blocks)) if groups is None else [groups]:
        segment = _segments(problem, blocks, number)
        last = max(k for k in segment if k is not None)
        for numbered in (segment, [None if k == last else k for k in segment]):
            found.append(replayed(problem, *run_again(problem, numbered), begun))
    return cheapest(problem, "running groups of repeated blocks again", budget_bytes, found)


def selective(problem: Problem, budget_bytes: int) -> Solution:
    """As ``block``, but what matrix products, fused attention and convolutions make (``SAVED``) is kept as well.

    Raises:
        InfeasibleBudget: as ``block``.
    """
    begun = time.monotonic()
    saved = {name for operator in problem.forward if operator.kind in SAVED for name in operator.outputs}
    forward, stages = run_again(problem, _segments(problem, _blocks(problem), None), saved)
    what = "running all but products, attention and convolutions of repeated blocks again"
    return one_pass(problem, what, budget_bytes, forward, stages, begun)


def _blocks(problem: Problem) -> tuple[Repetition, ...]:
    blocks = repeated_blocks(problem)
    if not blocks:
        raise InfeasibleBudget(
            f"No plan of {problem.name} runs repeated blocks again: none of its operators are repeated as a block. "
            "The variant sqrt-n needs no blocks."
        )
    return blocks


def _segments(problem: Problem, blocks: Sequence[Repetition], groups: int | None) -> list[int | None]:
    """The number of each operator's group: consecutive blocks of one repetition. None: outside of blocks.

    ``groups``: how many of each repetition, as even as can be; at most, and if None, one for each block.
    """
    segment: list[int | None] = [None] * len(problem.forward)
    before = 0
    for one in blocks:
        number = one.count if groups is None else min(groups, one.count)
        for i in range(one.first, one.end):
            segment[i] = before + (i - one.first) // one.period * number // one.count
        before += number
    return segment
