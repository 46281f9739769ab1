"""Nothing but results and errors: what PyTorch, transformers and others log, or warn of, is kept to themselves."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """A context in which nothing below an error is logged and no Python warning is shown, in this process, for all
    libraries; nothing of that where it is not ``wanted``."""
    if not wanted:
        yield
        return
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
