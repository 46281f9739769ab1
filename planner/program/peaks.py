"""Stages right after a large peak: where recomputing early pays, whatever the window.

Large workspaces of a few early stages (a Winograd gradient of gigabytes) can force tensors out of memory that are
needed much later. Late in the backward pass there may be no room to make them again, but right after
the peak there is, while their inputs are still kept. Two such stages turned U-Net at 9 GiB (published P100
profile) from 1137.3 ms, proven optimal for window 16, into 1132.8 ms.
"""

from __future__ import annotations

from monet.planner.program.index import Index
from monet.planner.program.windows import worth_offering

PEAKS = 2
"""Peaks that are followed up. Each makes the program larger by one stage for every tensor."""


def after_peaks(index: Index, count: int = PEAKS) -> frozenset[int]:
    """The stages right after peaks: for each of ``count`` peaks, the first later stage that offers recomputation.

    A peak is a stage whose fastest implementation is faster than the one that needs least memory; the largest peaks
    are those with most (seconds gained) · (bytes of the fastest one's workspace and of gradients).
    """
    score: dict[int, float] = {}
    for stage, runs in enumerate(index.runs_backward):
        if not runs:
            continue
        fastest, least = runs[0], min(runs, key=lambda q: q.workspace_bytes - q.aliased_bytes)
        extra = fastest.workspace_bytes - fastest.aliased_bytes + index.problem.backward[stage].live_during_bytes
        score[stage] = (least.time_s - fastest.time_s) * max(extra, 0)
    peaks = sorted((stage for stage in score if score[stage] > 0), key=lambda stage: (-score[stage], stage))[:count]
    latest = max(
        (index.last.get(n, -1) for i, again in enumerate(index.runs_again) if again for n in index.remade(i)),
        default=-1,
    )
    offered = sorted(stage for stage in worth_offering(index) if stage <= latest)
    following = ((later for later in offered if later > peak) for peak in peaks)
    return frozenset(found for stages in following if (found := next(stages, None)) is not None)
