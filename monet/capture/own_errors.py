"""Whether a model fails by itself on such inputs, or only where it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from monet.capture.guards.module_changes import put_back

_OF_FAKES = ("Fake", "fake", "data pointer", "data_ptr", "meta tensor")
"""What an error says that a fake tensor has caused."""


def fails_by_itself(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
) -> bool:
    """Whether ``model``, called on tensors without memory and not traced, raises what ``error`` says. What it assigns
    meanwhile is put back."""
    if type(error).__module__ != "builtins" or any(word in str(error) for word in _OF_FAKES):
        return False
    mode = detect_fake_mode((*args, *kwargs.values())) or FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        return mode.from_tensor(value) if is_real else value

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        with put_back(model, []), mode:
            given = pytree.tree_map(fake, (tuple(args), dict(kwargs)))
            torch.func.functional_call(model, {name: fake(tensor) for name, tensor in tensors.items()}, *given)
    except Exception as own:  # whatever the model raises
        return type(own) is type(error) and str(own).splitlines()[:1] == str(error).splitlines()[:1]
    return False
