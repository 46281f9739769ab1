"""What a measurement is kept under: a name that no move of files changes, and that no two kernels share."""

from __future__ import annotations

import pytest
import torch

from monet.base.graph import Ref, Value
from monet.ops import kernel_names
from monet.ops.families.convolution import chunks, im2col
from monet.ops.kernel_names import call_name, kernel
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.step.training_step.accumulation import Accumulate

aten = torch.ops.aten


def test_kernels_of_one_function_name_have_names_of_their_own() -> None:
    assert chunks.forward.__qualname__ == im2col.forward.__qualname__
    assert {call_name(chunks.forward), call_name(im2col.forward)} == {"convolution_in_chunks", "im2col_convolution"}


def test_torch_keeps_its_own_names() -> None:
    assert call_name(aten.add.Tensor) == "aten.add.Tensor"
    assert call_name(torch.nn.functional.relu6) == "torch.nn.functional.relu6"


def test_operators_that_monet_adds_are_called_what_they_write() -> None:
    assert call_name(Accumulate()) == "autograd.accumulate"


def test_a_name_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_names, "_names", dict(kernel_names._names))

    def function() -> None: ...

    assert kernel("name_of_a_test")(function) is function
    assert call_name(function) == "name_of_a_test"
    with pytest.raises(ValueError, match="two kernels are called name_of_a_test"):
        kernel("name_of_a_test")
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor"):
        kernel("aten.add.Tensor")


def test_a_function_of_monets_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"monet\.ops\.kernel_names\.call_name is measured, and has no name"):
        call_name(call_name)


def test_a_signature_tells_kernels_among_its_arguments_by_name() -> None:
    x = Value("x", (5,), (1,), 0, torch.float32, torch.device("cpu"), "x", 20)
    run = Implementation("any", chunks.forward, (im2col.forward, aten.sin.default, Ref("x"), 0.5), (), ("x",))
    assert signature(run, {"x": x}) == (
        "convolution_in_chunks(im2col_convolution, aten.sin.default, torch.float32[5]/[1]+0, 0.5; )"
        "->torch.float32[5]/[1]+0"
    )
