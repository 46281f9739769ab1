"""The objects of this process that the garbage collector knows."""

from __future__ import annotations

import gc
from typing import Any


def live_objects() -> list[Any]:
    """Also those that ``gc.freeze`` has set aside, which ``gc.get_objects`` leaves out. They are set aside again, with
    what is alive by then."""
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.collect()  # what is garbage would else be kept for good
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()
