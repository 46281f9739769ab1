"""The progress line of a search, on stderr: of a solve in seconds, of an order or a layout in bytes."""

from __future__ import annotations

import sys

from tqdm import tqdm

from monet.base.amounts import format_bytes

REFRESH_S = 0.25
SHARE_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
"""Of a bar of work whose parts take unequally long, so that their number would say nothing."""


def is_shown(progress: bool) -> bool:
    """Whether there is something to write ``progress`` to: a process without a terminal may have no stderr."""
    return progress and sys.stderr is not None


class ProgressLine:
    """A line with the best value so far, the bound and the gap; its bar is the time limit of this search: the first
    solve of a plan has a part of the plan's, and a proof after a solve begins again.

    It is a search's ``planner.progress.Progress``.
    """

    def __init__(self, shown: bool, time_limit_s: float, unit: str = "s", task: str = "solving") -> None:
        """``unit``: of what is minimised, ``s`` or ``bytes``. ``task``: what the line says is being done."""
        self._text = _bytes if unit == "bytes" else _seconds
        self._limit_s = time_limit_s
        digits = 0 if time_limit_s >= 10 else 1 if time_limit_s >= 0.1 else 3  # a limit is never shown as 0
        self._shown_s = -REFRESH_S
        self._bar = tqdm(
            total=time_limit_s, desc=task, disable=not is_shown(shown), leave=False,
            bar_format=f"{{desc}}: |{{bar}}| {{n:.{digits}f}}/{time_limit_s:.{digits}f} s{{postfix}}",
        )  # fmt: skip

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, incumbent: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        if self._bar.disable or 0 <= elapsed_s - self._shown_s < REFRESH_S:
            return
        self._shown_s = elapsed_s
        self._bar.n = min(elapsed_s, self._limit_s)
        best = "none yet" if incumbent is None else self._text(incumbent)
        least = "none yet" if bound is None else self._text(bound)
        self._bar.set_postfix_str(f"best {best}, bound {least}" + (f", gap {gap:.1%}" if gap is not None else ""))


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _bytes(value: float) -> str:
    return format_bytes(round(value))
