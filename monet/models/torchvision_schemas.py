"""Lets torchvision be imported beside a PyTorch that its compiled operators were not built for.

torchvision's wheel in the package registry is built for a PyTorch with CUDA. Beside a CPU-only
build its library of compiled operators does not load, silently, and then its import fails where it
describes two of them: ``operator torchvision::nms does not exist``. Its classification models need
neither operator, so naming the two is enough.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

_logger = logging.getLogger(__name__)
_SYMPTOM = "operator torchvision::nms does not exist"
_Result = TypeVar("_Result")

# A library's schemas vanish with it, so it has to stay.
_libraries: list[torch.library.Library] = []


def with_torchvision_schemas(action: Callable[[], _Result]) -> _Result:
    """The result of ``action``, which may import torchvision.

    On exactly the failure above, the missing schemas are defined and ``action`` is run once more.
    """
    try:
        return action()
    except Exception as error:
        if _libraries or not _is_missing_schema(error):
            raise
    _define_schemas()
    _forget_torchvision()
    _logger.info(
        "torchvision's compiled operators do not load beside this PyTorch; defined the names it needs to import"
    )
    return action()


def _is_missing_schema(error: BaseException | None) -> bool:
    """Whether ``error`` is the failure above, or was raised because of it."""
    while error is not None:
        if isinstance(error, RuntimeError) and _SYMPTOM in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _define_schemas() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


def _forget_torchvision() -> None:
    """Drop the modules that were imported before the failure, for a clean second import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
