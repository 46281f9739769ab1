"""Small programs in which an operator occurs: what its tests run and its row in the table of operators is read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Maker = Callable[[torch.Generator, torch.dtype], torch.Tensor]
Input = tuple[int, ...] | Maker

FLOATS = (torch.float32, torch.bfloat16)
HALVES = (*FLOATS, torch.float16)


@dataclass(frozen=True, slots=True)
class Sample:
    """``function(*activations, *weights)`` returns a tensor, or several of which floating ones reach the loss.

    ``activations`` and ``weights``: shapes of noise that takes a gradient, or functions ``(generator, dtype)`` that
    make another tensor (indices, positive numbers); a weight without gradient is a buffer. ``dtypes``: of floating
    tensors; one that the operator has no CPU kernel for is left out.
    """

    name: str
    function: Callable[..., Any]
    activations: tuple[Input, ...]
    weights: tuple[Input, ...] = ()
    dtypes: tuple[torch.dtype, ...] = FLOATS

    def module(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> SampleModule:
        """The program as a module whose parameters are the weights."""
        return SampleModule(self, dtype, seed)

    def inputs(self, dtype: torch.dtype = torch.float32, seed: int = 1) -> tuple[torch.Tensor, ...]:
        """Activations to call the module with; noise requires a gradient."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(_made(kind, generator, dtype) for kind in self.activations)


class SampleModule(torch.nn.Module):
    """Puts an operator of one element each before and after the program, so that none of its values is the step's own
    input or output: these are in memory during the whole step, and records may not reuse them."""

    def __init__(self, sample: Sample, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self._function = sample.function
        self._weights = [f"weight_{i}" for i in range(len(sample.weights))]
        for name, kind in zip(self._weights, sample.weights, strict=True):
            made = _made(kind, generator, dtype)
            if made.requires_grad:
                self.register_parameter(name, torch.nn.Parameter(made.detach()))
            else:
                self.register_buffer(name, made)

    def forward(self, *activations: torch.Tensor) -> Any:
        inside = [x.mul(1.25) if x.is_floating_point() else x for x in activations]
        results = self._function(*inside, *(getattr(self, name) for name in self._weights))
        if isinstance(results, torch.Tensor):
            return results.mul(0.75)
        return tuple(r.mul(0.75) if r.is_floating_point() else r for r in results)


def _made(kind: Input, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(kind, tuple):
        return kind(generator, dtype)
    return torch.randn(kind, generator=generator).to(dtype).requires_grad_()


def integers(shape: tuple[int, ...], below: int) -> Maker:
    """Indices in [0, below)."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.randint(below, shape, generator=generator)

    return make


def running(shape: tuple[int, ...], value: float) -> Maker:
    """A buffer of running statistics."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype)

    return make


def between(low: float, high: float, shape: tuple[int, ...], *, requires_grad: bool = True) -> Maker:
    """Uniform noise in [low, high)."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        noise = torch.rand(shape, generator=generator) * (high - low) + low
        return noise.to(dtype).requires_grad_(requires_grad)

    return make


def single(low: float, high: float, shape: tuple[int, ...], *, requires_grad: bool = True) -> Maker:
    """``between`` in float32, whatever the activations' dtype."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        return between(low, high, shape, requires_grad=requires_grad)(generator, torch.float32)

    return make
