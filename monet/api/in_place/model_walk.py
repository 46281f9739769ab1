"""A model's modules, found once: what each call asks of all of them is then read off lists."""

from __future__ import annotations

from typing import Any

import torch


class ModelWalk:
    """The modules of ``model`` in the order of ``model.modules()``. At each call it is looked whether they are still
    the model's; modes and ``requires_grad`` are plain attributes, whose change nobody notices, and are read anew."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._walk()

    def _walk(self) -> None:
        self._modules = list(self._model.modules())
        self._children = [(m._modules, name, child) for m in self._modules for name, child in m._modules.items()]
        # Of each module: its dictionaries, in whose place others may be put, and how many children it has.
        self._held = [(m, m._modules, len(m._modules), m._parameters) for m in self._modules]
        self._parameters: list[dict[str, Any]] = [m._parameters for m in self._modules]

    def _is_as_found(self) -> bool:
        for module, children, count, parameters in self._held:
            if module._modules is not children or len(children) != count or module._parameters is not parameters:
                return False
        return all(children.get(name) is child for children, name, child in self._children)

    def modes_and_parameters(self) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """The mode of every module, and which parameters require a gradient."""
        if not self._is_as_found():
            self._walk()
        modes = [module.training for module in self._modules]
        requires = [p.requires_grad for held in self._parameters if held for p in held.values() if p is not None]
        return tuple(modes), tuple(requires)
