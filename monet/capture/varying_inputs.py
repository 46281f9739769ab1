"""Inputs whose sizes vary, as symbols that tracing carries along."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.fx.experimental._config as shape_config
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode

from monet.base.sizes import Dimension, Ranges, Ratio, sized
from monet.errors import CaptureError, ConfigError

NOT_FOR_A_RANGE = "the model cannot be planned for a range of shapes; plan each shape"

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


def ranges_of(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Mapping[str, Any]
) -> Ranges:
    """The ranges that a person gives: by argument, its axes that vary, as ``torch.export`` takes them
    (``{"input_ids": {0: Dim("batch", max=8), 1: Dim("length", max=512)}}``), or the same with a list of an entry an
    axis. Raises ``ConfigError``."""
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    return ranges_of_leaves(argument_names(model, args, kwargs), leaves, dynamic)


def ranges_of_leaves(names: Mapping[int, str], leaves: Sequence[Any], dynamic: Mapping[str, Any]) -> Ranges:
    """The same of the leaves of a flattened call; ``names``: of those that have one, by position."""
    if not isinstance(dynamic, Mapping) or not dynamic:
        raise ConfigError('dynamic must be as {"input_ids": {0: torch.export.Dim("batch", max=8)}}, by argument')
    unknown = sorted(map(str, set(dynamic) - set(names.values())))
    if unknown:
        raise ConfigError(f"dynamic names {unknown[0]!r}, and the call has {', '.join(map(str, names.values()))}")
    dimensions: dict[str, Dimension] = {}
    inputs: dict[int, tuple[str | None, ...]] = {}
    for position, name in names.items():
        if dynamic.get(name) is None:
            continue
        leaf = leaves[position]
        if not isinstance(leaf, torch.Tensor):
            raise ConfigError(f"dynamic[{name!r}]: the argument is no tensor, but {type(leaf).__name__}")
        axes: list[str | None] = [None] * leaf.dim()
        for axis, dim in _axes(dynamic[name]):
            if not isinstance(axis, int) or not -leaf.dim() <= axis < leaf.dim():
                raise ConfigError(f"dynamic[{name!r}]: there is no axis {axis!r} in shape {tuple(leaf.shape)}")
            dimension = _dimension(dim, f"dynamic[{name!r}][{axis}]")
            if dimensions.setdefault(dimension.name, dimension) != dimension:
                raise ConfigError(f"dynamic: there are two dimensions called {dimension.name!r}, of different ranges")
            axes[axis] = dimension.name
            if leaf.shape[axis] > dimension.most:
                raise ConfigError(
                    f"dynamic[{name!r}][{axis}]: the sample has size {leaf.shape[axis]}, above the maximum of "
                    f"{dimension.name}, {dimension.most}"
                )
        if any(axes):
            inputs[position] = tuple(axes)
    if not dimensions:
        raise ConfigError("dynamic: no axis of any argument varies")
    return Ranges(tuple(dimensions.values()), inputs)


def given_axes(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges
) -> dict[str, list[Dimension | None]]:
    """The ranges as ``ranges_of`` takes them."""
    names = argument_names(model, args, kwargs)
    by_name = {dimension.name: dimension for dimension in ranges.dimensions}
    return {
        names[position]: [None if name is None else by_name[name] for name in axes]
        for position, axes in ranges.inputs.items()
    }


def for_call(
    model: torch.nn.Module, args: Sequence[Any], of: Mapping[str, Any], kwargs: Mapping[str, Any], ranges: Ranges
) -> Ranges:
    """``ranges`` of a call with the keyword arguments ``of``, for one that has them in the order of ``kwargs``."""
    return ranges_of(model, args, kwargs, given_axes(model, args, of, ranges))


def argument_names(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, str]:
    """By position in the flattened call, the name of each argument that is one leaf; those of ``*inputs`` are
    ``inputs_0`` and so on."""
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind_partial(*args).arguments
    except TypeError as error:
        raise ConfigError(f"the sample is no call of the model: {error}") from error
    positional: list[str] = []
    for name, value in bound.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        positional += [f"{name}_{number}" for number in range(len(value))] if many else [name]
    names: dict[int, str] = {}
    for position, (path, _) in enumerate(pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]):
        if len(path) == 2:
            key: Any = path[1]
            at = getattr(key, "idx", None)
            names[position] = key.key if at is None else positional[at]
    return names


def _axes(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, Mapping):
        return [(axis, dim) for axis, dim in given.items() if dim is not None]
    if isinstance(given, tuple | list):
        return [(axis, dim) for axis, dim in enumerate(given) if dim is not None]
    raise ConfigError(f"dynamic: an argument's axes are a dictionary or a list, not {type(given).__name__}")


def _dimension(dim: Any, where: str) -> Dimension:
    name, least, most = (getattr(dim, field, None) for field in ("__name__", "min", "max"))
    if isinstance(dim, Dimension):
        name, least, most = dim.name, dim.least, dim.most
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f'{where}: must be a torch.export.Dim("name", max=512), not {dim!r}')
    if not isinstance(most, int) or most > 2**40:
        raise ConfigError(
            f"{where}: {name} has no maximum, and a plan is for the largest shape: torch.export.Dim({name!r}, max=512)"
        )
    least = max(1, least if isinstance(least, int) else 1)
    if least > most:
        raise ConfigError(f"{where}: the least size of {name}, {least}, is above its largest, {most}")
    return Dimension(name, least, most)


def largest(args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges) -> Inputs:
    """Inputs of the largest shape: those that vary are repeated, since parts of a model may have to be called with
    them. Raises ``ConfigError`` for an input that is not contiguous."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    sizes = ranges.largest
    for position, axes in ranges.inputs.items():
        leaf = leaves[position]
        if not leaf.is_contiguous():
            raise ConfigError(f"dynamic: input {position} is not contiguous, and its shape varies; pass it contiguous")
        repeated = leaf.detach()
        if 0 in leaf.shape:
            repeated = leaf.new_zeros(
                [n if name is None else sizes[name] for n, name in zip(leaf.shape, axes, strict=True)]
            )
        for axis, name in enumerate(axes):
            if name is not None:
                again = torch.arange(sizes[name], device=leaf.device) % repeated.shape[axis]
                repeated = repeated.index_select(axis, again)
        leaves[position] = repeated.requires_grad_(leaf.requires_grad)
    made: Inputs = pytree.tree_unflatten(leaves, spec)
    return made


class Symbols:
    """The dimensions of ``ranges`` as symbols of one trace; ``inputs``: fake tensors of theirs, in the order of the
    flattened call."""

    def __init__(self, inputs: Inputs, ranges: Ranges) -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # Sizes of 0 and 1 are no others to torch then: where one decides, that becomes a guard.
        self._environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._mode = FakeTensorMode(shape_env=self._environment, allow_non_fake_inputs=True)
        self._ranges = ranges
        leaves, spec = pytree.tree_flatten(inputs)
        symbols = {d.name: self._symbol(d) for d in ranges.dimensions}
        self._names = {symbols[name].node.expr: name for name in symbols}
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            axes = ranges.inputs.get(position, (None,) * leaf.dim())
            shape = [n if name is None else symbols[name] for n, name in zip(leaf.shape, axes, strict=True)]
            with self._mode:
                made = (
                    torch.empty(shape, dtype=leaf.dtype, device=leaf.device)
                    if position in ranges.inputs
                    else torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                )
            leaves[position] = made.requires_grad_(leaf.requires_grad)
        self.inputs: Inputs = pytree.tree_unflatten(leaves, spec)

    @staticmethod
    def general() -> AbstractContextManager[Any]:
        """A context in which torch asks of no symbol whether it is 1 where the answer changes no results: a sum over an
        axis of size 1 is what is summed, and a broadcast axis of size 1 may be expanded."""
        if not hasattr(shape_config, "backed_size_oblivious"):  # an older PyTorch makes guards of these
            return nullcontext()
        changed: AbstractContextManager[Any] = shape_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
        return changed

    def _symbol(self, dimension: Dimension) -> torch.SymInt:
        from torch._dynamo.source import ConstantSource  # what these import takes more than a second
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(dimension.name)
        symbol = self._environment.create_symbol(dimension.most, source, DimDynamic.DYNAMIC)
        made = self._environment.create_symintnode(symbol, hint=dimension.most, source=source)
        assert isinstance(made, torch.SymInt)
        return made

    def _named(self, expression: Any) -> Any:
        import sympy

        named = {old: sympy.Symbol(name, integer=True, positive=True) for old, name in self._names.items()}
        return expression.xreplace(named)

    def number(self, size: Any) -> Any:
        """A size of the trace, or what is calculated from some, as a number that knows what it is at other shapes.
        Raises ``CaptureError`` where values of tensors decide it."""
        if isinstance(size, int):
            return int(size)
        if _by_values(size):
            raise CaptureError("a size of the model depends on data; monet plans shapes that do not")
        if isinstance(size, torch.SymFloat):
            return Ratio(float(size.node.hint), self._named(size.node.expr))
        return sized(int(size.node.hint), self._named(size.node.expr))

    def ranges(self) -> Ranges:
        """With the conditions under which the trace holds."""
        guards = tuple(dict.fromkeys(self._named(guard.expr) for guard in self._environment.guards))
        return replace(self._ranges, guards=guards)


def is_symbol(size: Any) -> bool:
    """Whether it is a size that varies, and that no values decide."""
    return isinstance(size, torch.SymInt) and not _by_values(size)


def _by_values(size: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

    return has_free_unbacked_symbols(size)
