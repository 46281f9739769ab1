"""What is called in place of an island's own forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class Standing:
    """Called in place of a module's forward. No function: it has no code for others to read."""

    def __init__(self, call: Any, module: torch.nn.Module, own: Any) -> None:
        self._call, self._module, self._own = call, module, own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._module, self._own, args, kwargs)


def traced_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The modules that a trace calls: those for which no operator stands now, and which lie in none of these."""
    seen: set[torch.nn.Module] = set()
    queue = [model]
    while queue:
        module = queue.pop()
        if module in seen or isinstance(vars(module).get("forward"), Standing):
            continue
        seen.add(module)
        yield module
        queue += module.children()
