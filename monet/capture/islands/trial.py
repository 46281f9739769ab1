"""Islands called once, on the model's own inputs, to know what they return; then stood for by operators in a trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode

from monet.base.graph import Graph, Value
from monet.base.sizes import Ranges
from monet.capture.effects.given_containers import given_anew
from monet.capture.effects.module_changes import Change, put_back, same_buffers
from monet.capture.islands.finding import sparse_parameters
from monet.capture.islands.island import Beside, Island, foreign_leaf, share_memory
from monet.capture.islands.operators import ANCHOR, ISLAND, ISLAND_BACKWARD, described_by, geometry_of
from monet.capture.islands.result_sizes import inputs_of, result_rules, smaller_shapes
from monet.capture.islands.standing import Standing
from monet.capture.islands.state import Described, as_before, described, keeping_nothing, number_of, parted
from monet.errors import CaptureError

_FIXED = (bool, str, bytes, type(None))
"""What may be returned beside tensors: numbers may be of values."""
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


MOST_KEPT_BYTES = 1 << 26
"""Of the inputs of calls after a part's first."""
_Called = tuple[str, tuple[Described, Described]]
"""An island's key, and what it took and returned."""


class Islands:
    """The islands of one model: ``called`` by the model itself on ``args`` and ``kwargs``, each as often as it is.

    ``ranges``: which sizes of these vary, which have the largest shape then: what the islands return at other shapes is
    found out at a few. Raises ``CaptureError`` where a part cannot be one: what it returns, or what it leaves behind,
    is more than its arguments, its parameters and the generator say.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        modules: Sequence[torch.nn.Module],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        ranges: Ranges | None = None,
    ) -> None:
        tensors = [*model.parameters(), *model.buffers(), *pytree.tree_leaves((args, kwargs))]
        if any(isinstance(t, FakeTensor) or (isinstance(t, torch.Tensor) and t.device.type != "cpu") for t in tensors):
            raise CaptureError("a part that runs as it is inside of a plan is called once, on tensors of the CPU")
        self._paths = {id(module): name for name, module in model.named_modules()}
        self._held = {parameter.untyped_storage().data_ptr(): name for name, parameter in model.named_parameters()}
        self.modules = _outermost(model, modules)
        self._inputs: dict[str, list[list[torch.Tensor]]] = {}  # of each call
        self.by_key: dict[str, Island] = {}
        self._kept_bytes = 0
        self._beside = Beside()
        self._returned: list[tuple[Island, list[torch.Tensor], list[int]]] = []
        self._twins: dict[str, str] = {}  # key of one that is called otherwise in a trace → that of the one tried
        self._order: list[str] = []  # keys of the calls
        with as_before(model), self._replaced(self._try), torch.enable_grad(), keeping_nothing():
            given = given_anew(args, kwargs)
            model(*given[0], **given[1])
        self._look_for_changes()
        if ranges is not None:
            self._try_smaller(model, args, kwargs, ranges)

    @contextmanager
    def _replaced(self, call: Any) -> Iterator[None]:
        """A context in which the modules' forward is ``call(module, its own forward, args, kwargs)``."""
        before = [(module, module.forward, "forward" in vars(module)) for module in self.modules]
        for module, own, _ in before:
            vars(module)["forward"] = Standing(call, module, own)
        try:
            yield
        finally:
            for module, own, is_set in before:
                del vars(module)["forward"]
                if is_set:
                    vars(module)["forward"] = own

    def _try(self, module: torch.nn.Module, own: Any, args: Any, kwargs: Any) -> Any:
        tensors, literals, spec = parted((args, kwargs))
        name = self._paths[id(module)]
        odd = [leaf for leaf in literals.values() if not isinstance(leaf, _PLAIN)]
        if odd:
            raise CaptureError(f"{name} is called with a {type(odd[0]).__name__}, which no operator takes")
        recorded = torch.is_grad_enabled()
        found = next((of for of in self._of_call(module, tensors, spec, literals) if of.recorded == recorded), None)
        parameters = dict(module.named_parameters())

        def inputs() -> list[torch.Tensor]:
            return [tensor.detach().clone() for tensor in tensors] + list(parameters.values())

        if found is not None:
            self._order.append(found.key)
            self._kept_bytes += sum(tensor.nbytes for tensor in tensors)
            if self._kept_bytes <= MOST_KEPT_BYTES:  # of more calls, the last that is kept stands for those after it
                self._inputs[found.key].append(inputs())
            return found.called(tensors)
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        key = f"{name}#{sum(island.module is module for island in self.by_key.values())}"
        island = Island(
            name, key, module, own, spec, literals, described(tensors), tuple(parameters), autocast, self._beside,
            recorded=recorded,
        )  # fmt: skip
        self._inputs[key] = [inputs()]
        returned = _known(island, tensors, _Reads(self._held, module))
        island.sparse = frozenset(sparse_parameters(module)) & parameters.keys()
        self.by_key[key] = island
        self._order.append(key)
        results = parted(returned)[0]
        shared = [*tensors, *results]
        self._returned.append((island, shared, [tensor._version for tensor in shared]))
        island.changed = share_memory(tensors, results)  # for now
        return returned

    def _try_smaller(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges
    ) -> None:
        """Finds the rules by which sizes of results follow from those of arguments."""
        found: dict[str, list[tuple[Described, Described]]] = {
            key: [(island.arguments, tuple((getattr(torch, dtype), shape) for dtype, shape, _ in island.geometry))]
            for key, island in self.by_key.items()
        }
        for shapes in smaller_shapes(ranges):
            calls: list[_Called] | None = None
            for shape in shapes:
                made = self._calls_at(model, inputs_of(args, dict(kwargs), ranges, shape, clamped=False))
                if isinstance(made, Exception):
                    made = self._calls_at(model, inputs_of(args, dict(kwargs), ranges, shape, clamped=True))
                if isinstance(made, Exception):  # eager's own, of a size that the model does not take
                    failed = made
                    continue
                calls = made
                for key, call in calls:
                    found[key].append(call)
            if calls is None:
                at = " and ".join(f"{name} = {size}" for name, size in shapes[0].items())
                raise CaptureError(f"the model fails at {at}: {type(failed).__name__}: {failed}")
        for key, island in self.by_key.items():
            island.rules = result_rules(island.name, found[key])

    def _calls_at(
        self, model: torch.nn.Module, inputs: tuple[Sequence[Any], Mapping[str, Any]]
    ) -> list[_Called] | Exception:
        """What the islands take and return there, or the model's error."""
        keys, calls = iter(self._order), list[_Called]()

        def call(module: torch.nn.Module, own: Any, args: Any, kwargs: Any) -> Any:
            tensors, literals, spec = parted((args, kwargs))
            island = self.by_key.get(next(keys, ""))
            if island is None or (island.module, island.in_spec, island.literals) != (module, spec, literals):
                raise CaptureError(f"{self._paths[id(module)]} is called in another way at a smaller shape")
            returned = island.called(tensors)
            calls.append((island.key, (described(tensors), described(parted(returned)[0]))))
            return returned

        try:
            with as_before(model), self._replaced(call), torch.no_grad():
                given = given_anew(*inputs)
                model(*given[0], **given[1])
        except CaptureError:
            raise
        except Exception as error:  # whatever the model raises
            return error
        if next(keys, None) is not None:
            raise CaptureError("a part that cannot be traced is called less often at a smaller shape")
        return calls

    def _look_for_changes(self) -> None:
        """Whether the model has changed what it gave or was given in place, after the call. Where these share memory,
        the part is no island: it would change copies."""
        for island, shared, versions in self._returned:
            share, island.changed = island.changed, versions != [tensor._version for tensor in shared]
            if share and island.changed:
                raise CaptureError(f"{island.name} cannot be traced, and returns a view that is changed in place later")
        self._returned.clear()

    def _of_call(
        self, module: torch.nn.Module, tensors: Sequence[torch.Tensor], spec: Any, literals: Mapping[int, Any]
    ) -> list[Island]:
        """Those that were called so, the one that was called in the present mode of gradients first."""
        call = described(tensors), spec, literals
        found = [
            island
            for island in self.by_key.values()
            if island.module is module and (island.arguments, island.in_spec, island.literals) == call
        ]
        return sorted(found, key=lambda island: island.recorded != torch.is_grad_enabled())

    @contextmanager
    def in_trace(self) -> Iterator[None]:
        """A context in which operators stand for the islands."""
        with self._replaced(self._traced):
            yield

    def _traced(self, module: torch.nn.Module, own: Any, args: Any, kwargs: Any) -> Any:
        tensors, literals, spec = parted((args, kwargs))
        sizes = [leaf for leaf in literals.values() if isinstance(leaf, torch.SymInt)]
        if any(number_of(size) < 0 for size in (*sizes, *(size for tensor in tensors for size in tensor.shape))):
            packed = any(isinstance(leaf, PackedSequence) for leaf in (*args, *kwargs.values()))
            by = "pack_padded_sequence makes of values" if packed else "depends on values"
            # No ``CaptureError``: it is said with the line, and with what to do, as torch's own errors are.
            raise TypeError(f"{self._paths[id(module)]} is called with a size that {by}")
        if sizes:
            raise CaptureError(f"{self._paths[id(module)]} is called with a number that is a size which varies")
        known = self._of_call(module, tensors, spec, literals)
        island = known[0] if known else self._in_another_way(module, tensors, spec, literals)
        if island.out_spec is None:
            raise CaptureError(f"{island.name} cannot be traced, and was not called")
        own_parameters = dict(module.named_parameters(remove_duplicate=False))
        weights = ((name, own_parameters[name]) for name in island.parameters)
        inputs = [*tensors, *(ANCHOR(weight) if name in island.sparse else weight for name, weight in weights)]
        made = ISLAND(inputs, island.key, *described_by(island.results_for(tensors)))
        results = iter([r if has else r.detach() for r, has in zip(made, island.derived, strict=False)])
        count = island.out_spec.num_leaves
        found = [island.out_literals[i] if i in island.out_literals else next(results) for i in range(count)]
        return pytree.tree_unflatten(found, island.out_spec)

    def _in_another_way(
        self, module: torch.nn.Module, tensors: Sequence[torch.Tensor], spec: Any, literals: Mapping[int, Any]
    ) -> Island:
        """The module's one island, called as in a trace: models make masks there that they leave out otherwise."""
        known = [island for key, island in self.by_key.items() if island.module is module and key not in self._twins]
        if len(known) != 1 or not all(isinstance(leaf, _PLAIN) for leaf in literals.values()):
            raise CaptureError(f"{self._paths[id(module)]} is called in another way when it cannot be traced")
        if any(rule.axes for of in known[0].rules for rule in of):
            raise CaptureError(f"{known[0].name} is called in another way in a trace, and returns sizes that vary")
        key = f"{known[0].key}{'~' * (1 + sum(twin == known[0].key for twin in self._twins.values()))}"
        island = replace(known[0], key=key, in_spec=spec, literals=literals, arguments=described(tensors))
        self._twins[key] = known[0].key
        self.by_key[key] = island
        return island

    def measure(self, model: torch.nn.Module, graph: Graph) -> None:
        """What the islands of ``graph`` hold in a step, and take: they are called in its order. Once: then the inputs
        are let go. The seconds are those of a second time."""
        calls = [op.args[1:] for op in graph.forward if op.target is ISLAND]
        backward = [op for op in graph.backward if op.target is ISLAND_BACKWARD]
        derivations = [op.args[2:] for op in backward]
        positions: dict[str, set[int]] = {}
        for key, _, wanted, *_ in derivations:
            positions.setdefault(key, set()).update(wanted)
        for key, of in positions.items():
            self.by_key[key].wanted = frozenset(of)
        if not self._inputs:
            return
        with as_before(model), torch.no_grad():
            for _ in range(2):
                tokens: dict[str, list[tuple[Island, torch.Tensor]]] = {}
                results: dict[str, list[torch.Tensor]] = {}
                given = {key: deque(inputs) for key, inputs in self._inputs.items()}
                for key, kinds, sizes in calls:
                    known = self._tried(self.by_key[key])
                    inputs = given[known.key][0]
                    if len(given[known.key]) > 1:  # a trace may call it more often
                        given[known.key].popleft()
                    results[key] = known.forward(inputs, key, kinds, sizes)
                    tokens.setdefault(key, []).append((known, results[key][-1]))
                for op, (key, outputs, wanted, kinds, sizes) in zip(backward, derivations, strict=True):
                    known, token = tokens[key].pop()
                    # In the strides that they have in a step: what others are, kernels copy.
                    gradients = [_ones(graph.values[gradient.name]) for gradient in op.args[0]]
                    at = self._positions(self.by_key[key], known, wanted)
                    own = (kinds, sizes) if known is self.by_key[key] else ("", [])
                    known.backward(gradients, token, outputs, at, *own)
                for island in self.by_key.values():
                    for parameter in island.sparse:
                        island.taken_sparse(parameter)
                for key, island in self.by_key.items():
                    known = self.by_key[self._twins.get(key, key)]
                    known.forget()
                    island.forward_s, island.backward_s = known.forward_s, known.backward_s
        self._beside.now_bytes = 0
        self._inputs.clear()

    def _tried(self, island: Island) -> Island:
        """The island that was called in the trial, which records what ``island`` does."""
        known = self.by_key[self._twins.get(island.key, island.key)]
        if known is not island and island.wanted is not None:
            floats = (i for i, (dtype, _) in enumerate(known.arguments) if dtype.is_floating_point)
            known.wanted = frozenset(floats)
        return known

    @staticmethod
    def _positions(island: Island, known: Island, wanted: Sequence[int]) -> list[int]:
        """Of ``known``'s inputs, in place of ``island``'s: its parameters come after its own arguments."""
        if known is island:
            return list(wanted)
        count = len(island.arguments)
        return [i - count + len(known.arguments) for i in wanted if i >= count]


def _outermost(model: torch.nn.Module, modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Those that are in none of the others, in the model's order."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    chosen = {id(module) for module in modules} - inner
    return [module for module in model.modules() if id(module) in chosen]


def _ones(value: Value) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype).fill_(1)


class _Reads(TorchDispatchMode):
    """A context that notes parameters of other parts that are read. ``held``: names by address."""

    supports_higher_order_operators = True

    def __init__(self, held: Mapping[int, str], module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._others = {address: name for address, name in held.items() if address not in own}
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                self.found = self.found or self._others.get(leaf.untyped_storage().data_ptr(), "")
        return func(*args, **(kwargs or {}))


def _known(island: Island, tensors: Sequence[torch.Tensor], reads: _Reads) -> Any:
    """What the module returns; ``island`` gets what is known from that, and from a second call."""
    versions = [tensor._version for tensor in tensors]
    state = torch.get_rng_state()
    with same_buffers(island.module), torch.set_grad_enabled(island.recorded):
        arguments = [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        with reads:
            tried, *others = parted(island.called(arguments))
    island.foreign = reads.found
    torch.set_rng_state(state)
    changes: list[Change] = []
    with put_back(island.module, changes):
        returned = island.called([tensor.detach() for tensor in tensors])
    if changes:
        raise CaptureError(f"{island.name} cannot be traced, and changes its {changes[0].name}")
    if versions != [tensor._version for tensor in tensors]:
        raise CaptureError(f"{island.name} cannot be traced, and changes its arguments in place")
    found, island.out_literals, island.out_spec = parted(returned)
    odd = [leaf for leaf in island.out_literals.values() if not isinstance(leaf, _FIXED)]
    if odd or not found or any(t.layout is not torch.strided for t in found):
        raise CaptureError(f"{island.name} cannot be traced, and returns more than dense tensors in tuples and dicts")
    if not _same_shapes(island, tensors, found):
        raise CaptureError(f"{island.name} cannot be traced, and the shape of its results depends on values")
    if others != [island.out_literals, island.out_spec] or not all(map(_same, found, tried)):
        raise CaptureError(f"{island.name} cannot be traced, and returns other values where gradients are recorded")
    if foreign_leaf(tried, (*arguments, *island.module.parameters())) is not None:
        raise CaptureError(f"{island.name} cannot be traced, and uses a parameter that is not its own")
    island.geometry = tuple(map(geometry_of, found))
    island.derived = tuple(leaf.requires_grad for leaf in tried)
    return returned


def _same_shapes(island: Island, tensors: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> bool:
    """Whether the results have these shapes for other values: the arguments' own, in another order."""
    generator = torch.Generator().manual_seed(0)
    others = [
        t.flatten()[torch.randperm(t.numel(), generator=generator)].view(t.shape) if t.is_floating_point() else t
        for t in tensors
    ]
    with same_buffers(island.module), torch.random.fork_rng(devices=[]):
        return described(parted(island.called(others))[0]) == described(found)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """But for rounding: recurrent layers run by other kernels where nothing is recorded."""
    if not first.is_floating_point():
        return torch.equal(first, second)
    rounding = torch.finfo(first.dtype).eps ** 0.5
    scale = float(first.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if first.numel() else 0.0
    return torch.allclose(first, second, rtol=rounding, atol=rounding * scale, equal_nan=True)
