"""Seconds and memory requests of one implementation, by running it on made-up tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from monet.base.graph import Ref, Value
from monet.base.measurement import Measurement, Request
from monet.errors import ProfileError
from monet.native import allocator, devices, gpu_libraries
from monet.ops.compressed import sparse
from monet.ops.measuring import factorizations, lengths
from monet.ops.measuring.requests import compact_offsets, in_memory_of, own_requests, worker_requests
from monet.ops.measuring.signature import EVICTS, signature
from monet.ops.measuring.timer import host_timer, timer
from monet.ops.offers.contents import Contents, Operators
from monet.ops.offers.implementation import Implementation
from monet.ops.strides import has_strides
from monet.plans.format import ALIGNMENT, CUDA_ALIGNMENT, aligned

# Enough repetitions for a short operator, few for a long one: until two runs agree and that is no chance, or until
# all runs together took ENOUGH_S.
AGREE = 0.05
AGREE_S = 0.002
ENOUGH_S = 0.06
MOST_RUNS = 5
LEAST_RUNS = 2
# What took longer the first time is timed once.
SLOW_S = 0.3
LEAST_SCRATCH_BYTES = 1 << 26
# Tensors up to this size share memory of huge pages: a process has 1024 arenas at most (``kMaxArenas``).
SMALL_BYTES = 1 << 22
SHARED_BYTES = 1 << 25
# The memory of inputs is kept for the next measurement until it is this many bytes.
MOST_INPUT_BYTES = 3 << 30
_NOISE = 1 << 20
_CPU = torch.device("cpu")
CONTENTS: Operators = {**sparse.CONTENTS, **factorizations.CONTENTS, **lengths.CONTENTS}


_Place = tuple[int | str, torch.dtype, torch.device]
"""Whose memory an argument is in: that of the arguments at its position, or of those whose content one signature says;
of its dtype and device."""


class Bench:
    """Runs implementations one after another, reusing the memory of inputs and one resident stretch for the rest.

    ``between_bytes``: so many other bytes are touched before each timed run, in the device's main memory, and where it
    can be (``signature.EVICTS``) its inputs are taken out of all caches. What an operator reads and writes in a step is
    not where repeating it would leave it: all other operators ran since it was made.
    ``reference_s``: how long that took before the runs of the last measurement, in the middle. It is the same work each
    time, so it tells whether anything disturbed them; 0 where there is none, and on a GPU, which does it later.
    ``device``: the step's, whose memory is measured. What an operator asks for on the CPU in a GPU's step has no part
    in its arena or its peak.
    """

    def __init__(self, between_bytes: int = 0, device: torch.device = _CPU) -> None:
        self._device = device
        self._between = torch.zeros(between_bytes, dtype=torch.uint8, device=device)
        self._between.add_(1)  # its memory is there from now on
        self.reference_s = 0.0
        self._evicts = EVICTS and between_bytes > 0 and device.type == "cpu"
        self._timer = timer(device)
        gpu_libraries.make_ready(device)
        self._inputs: dict[_Place, torch.Tensor] = {}  # a stretch of elements for each place
        self._homes: dict[_Place, allocator.Arena] = {}
        self._spoilt: dict[_Place, int] = {}  # how many of its elements may hold anything
        self._noise: dict[torch.dtype, torch.Tensor] = {}
        self._scratch: dict[torch.device, allocator.Arena] = {}
        self._shared: list[allocator.Arena] = []  # memory for small tensors
        self._taken = SHARED_BYTES  # of the last of them

    def measure(self, implementation: Implementation, values: Mapping[str, Value]) -> Measurement:
        """Raises ``ProfileError`` with torch's reason when the implementation fails on such tensors, and where a result
        has another shape, stride or dtype than its value: what comes after it is planned for these."""
        made: dict[str, torch.Tensor] = {}
        device = _device(implementation, values)
        self.reference_s = 0.0
        if sum(tensor.untyped_storage().nbytes() for tensor in self._inputs.values()) > MOST_INPUT_BYTES:
            self._inputs.clear()
            self._homes.clear()
            self._shared.clear()
            self._taken = SHARED_BYTES
            self._spoilt.clear()

        for name in implementation.inputs():
            if name.endswith(".rng"):
                made[name] = _random_state(device)
        contents = CONTENTS.get(implementation.call)
        if contents is not None:
            self._fill(contents, implementation, values, made)
        args = [self._real(a, made, values) for a in implementation.args]
        kwargs = {k: self._real(v, made, values) for k, v in implementation.kwargs}
        state, own_state = torch.get_rng_state(), _random_state(device)
        try:
            with torch.no_grad():
                return self._run(implementation, args, kwargs, values, device)
        except RuntimeError as error:
            raise ProfileError(
                f"{implementation.call_name} fails on {signature(implementation, values)}: {error}"
            ) from error
        finally:
            torch.set_rng_state(state)
            if device.type == "cuda":
                torch.cuda.set_rng_state(own_state, device)
            if implementation.overwrites is not None:  # runs in place have left anything in it
                spoilt = made[implementation.overwrites].untyped_storage()
                for place in [p for p, base in self._inputs.items() if base.data_ptr() == spoilt.data_ptr()]:
                    elements = _elements(values[implementation.overwrites])
                    self._spoilt[place] = max(self._spoilt.get(place, 0), elements)

    def _real(self, argument: Any, made: dict[str, torch.Tensor], values: Mapping[str, Value]) -> Any:
        """The argument tree with tensors for values; one tensor a value."""
        if isinstance(argument, Ref):
            if argument.name not in made:
                value = values[argument.name]
                tensor = self._tensor(value, (len(made), value.dtype, value.device))
                tensor = tensor.conj() if value.conjugate else tensor
                made[argument.name] = torch._neg_view(tensor) if value.negative else tensor
            return made[argument.name]
        if isinstance(argument, list | tuple):
            return [self._real(item, made, values) for item in argument]
        return argument

    def _run(
        self,
        implementation: Implementation,
        args: list[Any],
        kwargs: dict[str, Any],
        values: Mapping[str, Value],
        device: torch.device,
    ) -> Measurement:
        if device.type != self._device.type or devices.library(device) is None:
            return self._time_only(implementation, args, kwargs, values, device)
        if device.type == "cuda":
            # Libraries keep what they ask for at their first call (cuBLAS its workspace): it is no request of a step.
            _named(implementation, implementation.call(*args, **kwargs))
            devices.synchronize(device)

        def recorded() -> tuple[allocator.Recording, list[torch.Tensor | None]]:
            with devices.recording(device) as recording:
                results = _named(implementation, implementation.call(*args, **kwargs))
            devices.synchronize(device)
            return recording, results

        (recording, results), first_s = host_timer(recorded)
        _compare(results, implementation, values)
        requests, ticks = own_requests(recording.events, results, implementation, device)
        requests += worker_requests(recording, ticks, implementation)
        del results
        arena = self._serve(requests, device)
        touching: list[float] = []
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)] if self._evicts else []

        def run() -> float:
            for tensor in given:
                allocator.evict(tensor)
            touching.append(host_timer(lambda: self._between.add_(1))[1])
            arena.enter(0)
            try:
                results, took_s = self._timer(lambda: _named(implementation, implementation.call(*args, **kwargs)))
            finally:
                arena.leave()
            del results
            return took_s

        time_s = _median_s(run, 1 if first_s > SLOW_S else MOST_RUNS)
        if device.type == "cpu" and self._between.numel():
            self.reference_s = median(touching)
        misses = arena.statistics().misses
        arena.close()
        if misses:
            raise ProfileError(f"{implementation.call_name} asks for other memory when it runs again")
        return Measurement(time_s, requests, ticks)

    def _time_only(
        self,
        implementation: Implementation,
        args: list[Any],
        kwargs: dict[str, Any],
        values: Mapping[str, Value],
        device: torch.device,
    ) -> Measurement:
        """With no recorder, or on another device than the step's: outputs are all that is known of its memory."""
        results = _named(implementation, implementation.call(*args, **kwargs))
        _compare(results, implementation, values)
        requests = tuple(
            Request(r.untyped_storage().nbytes(), 0, None, i)
            for i, r in enumerate(results)
            if r is not None and in_memory_of(self._device, r) and not (implementation.overwrites and i == 0)
        )
        timed = self._timer if device.type == self._device.type else host_timer

        def run() -> float:
            devices.synchronize(device)
            return timed(lambda: implementation.call(*args, **kwargs))[1]

        return Measurement(_median_s(run, MOST_RUNS), requests, 1)

    def _serve(self, requests: Sequence[Request], device: torch.device) -> allocator.Arena:
        """An arena for these requests in memory that earlier measurements made resident."""
        offsets, size = compact_offsets(requests, CUDA_ALIGNMENT if device.type == "cuda" else ALIGNMENT)
        placed = list(zip((r.bytes for r in requests), offsets, strict=True))
        crew = [placed.pop() if requests and requests[-1].workers else (0, 0)]
        scratch = self._scratch.get(device)
        if scratch is None or scratch.bytes < size:
            self._scratch.pop(device, None)
            scratch = self._scratch[device] = _resident(max(size, LEAST_SCRATCH_BYTES), device)
        arena = devices.arena(device, [placed], size, crew)
        arena.share(scratch)
        return arena

    def _base(self, place: _Place, size: int) -> torch.Tensor:
        """``size`` elements, or more, at a place, in memory of the kind that a planned step's tensors lie in (huge
        pages): reading from other memory takes up to twice as long."""
        if place not in self._inputs or self._inputs[place].numel() < size:
            _, dtype, device = place
            self._inputs.pop(place, None)
            self._spoilt[place] = size
            if device.type != "cpu" or not size or not allocator.available():
                self._inputs[place] = torch.empty(size, dtype=dtype, device=device)
            elif size * dtype.itemsize <= SMALL_BYTES:
                self._inputs[place] = self._small(size, dtype)
            else:
                self._homes[place], self._inputs[place] = _mapped(size, dtype)
        return self._inputs[place]

    def _small(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of ``size`` elements in the memory that small tensors share."""
        count = size * dtype.itemsize
        if self._taken + count > SHARED_BYTES:
            self._shared.append(allocator.Arena([], SHARED_BYTES))
            self._shared[-1].map()
            self._taken = 0
        place = allocator.Arena([[(count, self._taken)]], SHARED_BYTES)
        place.share(self._shared[-1])
        self._taken += aligned(count)
        return _served(place, size, dtype)

    def _fill(
        self,
        contents: Contents,
        implementation: Implementation,
        values: Mapping[str, Value],
        made: dict[str, torch.Tensor],
    ) -> None:
        """The tensor whose content is the operator's to say, where the call has it."""
        args, kwargs = implementation.args, dict(implementation.kwargs)
        ref = args[contents.argument] if isinstance(contents.argument, int) else kwargs.get(contents.argument)
        if not isinstance(ref, Ref):
            return
        value = values[ref.name]
        place = (signature(implementation, values), value.dtype, value.device)
        tensor = _as_value(self._base(place, _elements(value)), value)
        if self._spoilt.pop(place, None) is not None:
            named = {name: _described(argument, values) for name, argument in kwargs.items()}
            contents.fill(tensor, [_described(argument, values) for argument in args], named)
        made[ref.name] = tensor

    def _tensor(self, value: Value, place: _Place) -> torch.Tensor:
        """Noise of the value's geometry at its place; integers are 0, a valid index everywhere."""
        base = self._base(place, _elements(value))
        spoilt = base[: self._spoilt.pop(place, 0)]
        if value.dtype.is_floating_point or value.dtype.is_complex:
            noise = self._noise.get(value.dtype)
            if noise is None:
                generator = torch.Generator().manual_seed(0)
                # Between 0 and 1, as some operators (logarithms, deviations, probabilities) want it.
                noise = torch.rand(_NOISE, generator=generator).mul_(0.8).add_(0.1).to(value.dtype)
                self._noise[value.dtype] = noise
            whole = spoilt.numel() // _NOISE
            spoilt[: whole * _NOISE].view(whole, _NOISE).copy_(noise)
            spoilt[whole * _NOISE :].copy_(noise[: spoilt.numel() - whole * _NOISE])
        else:
            spoilt.fill_(value.dtype is torch.bool)
        return _as_value(base, value)


def _as_value(base: torch.Tensor, value: Value) -> torch.Tensor:
    """A tensor in the memory of ``base``, whose storage ends where the value's does: some operators copy all of their
    input's storage (``slice_scatter``)."""
    storage = torch._C._construct_storage_from_data_pointer(base.data_ptr(), base.device, value.storage_bytes)
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, value.offset, value.shape, value.stride)


def _elements(value: Value) -> int:
    """Of the whole storage."""
    return value.storage_bytes // value.dtype.itemsize


def _median_s(run: Callable[[], float], most_runs: int) -> float:
    """The median of what ``run`` says it took, over enough runs."""
    times: list[float] = []
    while not _enough(times, most_runs):
        times.append(run())
    return median(times)


def _enough(times: Sequence[float], most_runs: int) -> bool:
    """Whether more runs would tell little: the two fastest agree. What disturbs a run only makes it slower."""
    if len(times) < LEAST_RUNS:
        return len(times) == most_runs
    fastest, second = sorted(times)[:2]
    agree = second - fastest <= AGREE * fastest and sum(times) >= AGREE_S
    return agree or sum(times) >= ENOUGH_S or len(times) >= most_runs


def _described(argument: Any, values: Mapping[str, Value]) -> Any:
    return values[argument.name] if isinstance(argument, Ref) else argument


def _device(implementation: Implementation, values: Mapping[str, Value]) -> torch.device:
    """Where it runs: where its results are, or its inputs."""
    names = (*implementation.outputs, *implementation.inputs())
    found = [values[name].device for name in names if name is not None and name in values]
    return next((device for device in found if device.type != "cpu"), torch.device("cpu"))


def _random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _resident(size: int, device: torch.device) -> allocator.Arena:
    """Memory to measure in that takes no time to be made when something is timed."""
    if device.type == "cpu":
        arena, memory = _mapped(size, torch.uint8)
        memory.zero_()
        return arena
    arena = devices.arena(device, [], size)
    arena.map()
    return arena


def _mapped(size: int, dtype: torch.dtype) -> tuple[allocator.Arena, torch.Tensor]:
    """A tensor of ``size`` elements that fills an arena of its own; it must not outlive the arena."""
    count = size * dtype.itemsize
    home = allocator.Arena([[(count, 0)]], count)
    home.map()
    return home, _served(home, size, dtype)


def _served(arena: allocator.Arena, size: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``size`` elements at the place of the arena's only request."""
    arena.enter(0)
    try:
        return torch.empty(size, dtype=dtype)
    finally:
        arena.leave()


def _named(implementation: Implementation, results: Any) -> list[torch.Tensor | None]:
    """The results that have a name; the others are released here."""
    flat = [results] if implementation.single else list(results)
    return [r if name is not None else None for r, name in zip(flat, implementation.outputs, strict=False)]


def _compare(
    results: Sequence[torch.Tensor | None], implementation: Implementation, values: Mapping[str, Value]
) -> None:
    """Raises ``ProfileError`` where a kernel's result has another geometry than the graph says: bit masks and views
    rely on the graph."""
    for position, (name, result) in enumerate(zip(implementation.outputs, results, strict=False)):
        if name is None or result is None:
            continue
        value = values[name]
        if result.dtype is value.dtype and result.shape == value.shape and has_strides(result, value.stride):
            continue
        found = _geometry(tuple(result.shape), result.stride(), result.dtype)
        raise ProfileError(
            f"result {position} ({name}) of {implementation.call_name} is {found}, but torch traced it as "
            f"{_geometry(value.shape, value.stride, value.dtype)}, and a plan would rely on that; make the operator's "
            "inputs contiguous in the model (.contiguous()), or report this operator"
        )


def _geometry(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)} with strides {list(stride)}"
