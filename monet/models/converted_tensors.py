"""Parameters and buffers of a model replaced by others, where ``Module.to`` cannot: it fails for fake tensors, and
unties weights on the meta device."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def convert_tensors(model: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Put ``convert(tensor)`` in the place of every parameter and buffer of ``model``; what was one stays one."""
    made: dict[int, Tensor] = {}
    given: list[Tensor] = []  # what ``made`` names by address

    def converted(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            new = convert(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            made[id(tensor)] = new
            given.append(tensor)
        return made[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = converted(tensor)  # type: ignore[assignment]
