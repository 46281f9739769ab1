"""What two processes do in tests of parallel training; run as ``rank_cases.py rank folder case…``.

Each case is a function that is given its rank, and returns what the test looks at. Models are small, and planned in a
hurry.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_models import Residual
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import monet
from monet.api.in_place.plan_source import PlanSource
from monet.errors import MonetError
from monet.executor.backward_parts import BackwardParts
from monet.executor.runner import Runner
from monet.pipeline import placement
from monet.plans.plan import Plan

HASTE: dict[str, Any] = {"time_limit_s": 2, "progress": False, "exact": True}
LONG = datetime.timedelta(minutes=10)
"""After that a process which waits for another one gives up; no result hangs on it."""


def perceptron(width: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def residual() -> Residual:
    torch.manual_seed(0)
    return Residual()


def images(rank: int, step: int, batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def rows(rank: int, step: int, batch: int = 32) -> Tensor:
    return torch.randn(batch, 64, generator=torch.Generator().manual_seed(100 * step + rank))


class Training:
    """A model inside of ``DistributedDataParallel``, planned or not, and what its steps leave."""

    def __init__(self, model: nn.Module, *, hook: Any = None, **options: Any) -> None:
        self.model = model
        self.parallel = DistributedDataParallel(model, **{"bucket_cap_mb": 0.002, **options})
        if hook is not None:
            # Which looks at the annotations of a function.
            self.parallel.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
        self.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        self.seen: list[Tensor] = []

    def step(self, *batches: Tensor) -> None:
        """One update; of several micro-batches all but the last are not reduced."""
        self.optimizer.zero_grad()
        for x in batches[:-1]:
            with self.parallel.no_sync():
                self._backward(x)
        self._backward(batches[-1])
        self.seen += [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.step()

    def _backward(self, x: Tensor) -> None:
        loss = self.parallel(x).square().mean()
        loss.backward()
        self.seen.append(loss.detach())

    def everything(self) -> list[Tensor]:
        """All losses and gradients so far, weights and buffers."""
        return [*self.seen, *(t.clone() for t in self.model.state_dict().values())]


def same(one: Training, other: Training) -> bool:
    a, b = one.everything(), other.everything()
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def counts(model: nn.Module) -> tuple[int, int, int]:
    found = monet.applied(model)
    return found.planned_calls, found.eager_calls, len(found.plans)


def _half(_: object, bucket: Any) -> Any:
    """A hook of the user's: buckets travel in half precision."""
    half = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]).div_(2))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "hook": {"hook": _half},
}


def kinds(rank: int) -> dict[str, Any]:
    """Several steps, with micro-batches between, for each kind of ``DistributedDataParallel``."""
    found: dict[str, Any] = {}
    for kind, options in KINDS.items():
        planned, eager = Training(residual(), **options), Training(residual(), **options)
        monet.apply(planned.model, budget="97%", **HASTE)
        for training in (planned, eager):
            for step in range(3):
                training.step(images(rank, step))
            if kind != "static":  # which takes no_sync for another graph
                training.step(images(rank, 3), images(rank, 4), images(rank, 5))
            training.step(images(rank, 6))
        plan = monet.applied(planned.model).plans[0]
        found[kind] = {
            "same": same(planned, eager),
            "counts": counts(planned.model),
            "buckets": plan.fixed.get("buckets"),
            "parameters": plan.fixed["parameters"],
            "plan": plan,
        }
    return found


def who_plans(rank: int) -> dict[str, Any]:
    """Only rank 0 does, and each rank trains on its part of a batch: together on all of it."""
    model = perceptron()
    monet.apply(model, budget="100%", cache=False, **HASTE)
    together = Training(model)
    with noting_plans() as made:
        for step in range(3):
            together.step(rows(rank, step))
    alone = perceptron()
    optimizer = torch.optim.SGD(alone.parameters(), 0.05, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        alone(torch.cat([rows(0, step), rows(1, step)])).square().mean().backward()
        optimizer.step()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    apart = max(float((p - q).abs().max() / q.abs().max()) for p, q in pairs)
    return {"made": [rank for _ in made], "plan": monet.applied(model).plans[0], "apart": apart}


def order_of_buckets(rank: int) -> list[str]:
    """Of the third step, in which the buckets are as the second has shown them."""
    events: list[str] = []
    run = Runner.part

    def part(self: Runner, parts: BackwardParts, number: int) -> dict[str, Tensor]:
        events.append("part")
        return run(self, parts, number)

    def reduced(_: object, bucket: Any) -> Any:
        events.append("bucket")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)

    Runner.part = part  # type: ignore[method-assign]
    try:
        model = perceptron()
        monet.apply(model, budget="100%", **HASTE)
        training = Training(model, hook=reduced)
        for step in range(3):
            events.clear()
            training.step(rows(rank, step))
    finally:
        Runner.part = run  # type: ignore[method-assign]
    return events


class Unused(nn.Module):
    """Has a layer that it never uses, and an output that a loss may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.beside = nn.Linear(64, 64), nn.Linear(64, 10), nn.Linear(64, 3)
        self.never = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.tanh(self.body(x))
        return self.head(x), self.beside(x)


def unused(rank: int) -> dict[str, Any]:
    """Parameters without a gradient: of an output that rank 1 leaves out of its loss, and such as no output needs.
    By ``monet.apply``, by a compiled model, whose graph has never seen the latter, and by the model itself."""
    found: dict[str, Any] = {}
    torch._dynamo.config.optimize_ddp = False
    for kind in ("eager", "apply", "compile"):
        torch.manual_seed(0)
        model = Unused()
        if kind == "apply":
            monet.apply(model, budget="100%", **HASTE)
        if kind == "compile":
            model.compile(backend="monet", dynamic=False, options={"budget": "100%", "cache": False, **HASTE})
        around = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.002)
        seen = []
        with noting_plans() as made:
            for step in range(3):
                model.zero_grad()
                head, beside = around(rows(rank, step))
                loss = head.square().mean()
                if rank == 0 and step > 0:
                    loss = loss + beside.square().mean()
                loss.backward()
                seen.append({name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()})
        found[kind] = {"seen": seen, "made": len(made)}
        if kind == "apply":
            found[kind]["counts"] = counts(model)
    eager = found["eager"]["seen"]
    for kind in ("apply", "compile"):
        pairs = [(a[name], b[name]) for a, b in zip(found[kind].pop("seen"), eager, strict=True) for name in a]
        found[kind]["same"] = all(torch.equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)
    found["without"] = [[name for name, g in step.items() if g is None] for step in eager]
    return found


class Around(nn.Module):
    """A model that has a planned one inside, as Lightning's modules do."""

    def __init__(self, planned: nn.Module) -> None:
        super().__init__()
        self.net = planned
        self.last = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.net(x))
        return out


def modules(rank: int) -> dict[str, Any]:
    """``MonetModule``s in ``DistributedDataParallel``: with one plan, and with one of its own in each process."""
    plans = [monet.plan(perceptron(), rows(rank, 0), budget=budget, **HASTE) for budget in ("100%", "99%")]
    box = [plans[0]]
    dist.broadcast_object_list(box, src=0)
    planned, eager = Training(monet.MonetModule(perceptron(), box[0])), Training(perceptron())
    for training in (planned, eager):
        for step in range(2):
            training.step(rows(rank, step))
    found: dict[str, Any] = {"same": same(planned, eager)}
    apart = Training(monet.MonetModule(perceptron(), plans[rank]))
    found["apart"] = refused(lambda: apart.step(rows(rank, 0)))
    found["again"] = refused(lambda: apart.step(rows(rank, 0)))
    inside = Training(Around(monet.MonetModule(perceptron(), plans[rank])))
    found["inside"] = refused(lambda: inside.step(rows(rank, 0)))
    return found


@contextlib.contextmanager
def noting_plans() -> Iterator[list[Plan]]:
    """What this process plans meanwhile, itself."""
    made: list[Plan] = []
    planned = PlanSource.planned

    def planning(self: PlanSource, *args: Any, **kwargs: Any) -> Any:
        found = planned(self, *args, **kwargs)
        made.append(found.module.plan)
        return found

    PlanSource.planned = planning  # type: ignore[method-assign]
    try:
        yield made
    finally:
        PlanSource.planned = planned  # type: ignore[method-assign]


def compiled(rank: int) -> dict[str, Any]:
    """``torch.compile`` by the backend, inside of ``DistributedDataParallel``; rank 1 has another first batch, too."""
    torch._dynamo.config.optimize_ddp = False
    own: list[Any] = []
    adopted = PlanSource.adopted

    def adopting(self: PlanSource, model: nn.Module, args: Any, kwargs: Any, given: Any, guard: Any) -> Any:
        own.append(given)
        return adopted(self, model, args, kwargs, given, guard)

    found: dict[str, Any] = {}
    PlanSource.adopted = adopting  # type: ignore[assignment]
    try:
        for name, sizes in {"same": [4, 4, 4], "first": [4 - rank, 4, 4], "last": [4, 4, 4 - rank]}.items():
            torch._dynamo.reset()
            own.clear()
            planned, eager = residual(), residual()
            options = {"budget": "100%", "cache": False, **HASTE}
            planned.compile(backend="monet", dynamic=False, options=options)
            trainings = [Training(model, gradient_as_bucket_view=True) for model in (planned, eager)]
            with noting_plans() as made:
                for training in trainings:
                    for step, size in enumerate(sizes):
                        training.step(images(rank, step, size))
            found[name] = {"same": same(*trainings), "made": made, "own": list(own)}
        small = residual()
        small.compile(backend="monet", dynamic=False, options={"budget": "1KB", **HASTE})
        found["too small"] = refused(lambda: Training(small).step(images(rank, 0)))
        other = residual()
        if rank == 1:
            other.body[2] = nn.GELU()  # the same parameters, and another step
        other.compile(backend="monet", dynamic=False, options={"budget": "100%", **HASTE})
        found["another model"] = refused(lambda: Training(other).step(images(rank, 0)))
    finally:
        PlanSource.adopted = adopted  # type: ignore[method-assign]
    return found


def other_shapes(rank: int) -> dict[str, Any]:
    """Rank 1 has another first batch in one training, and a smaller last one in another."""
    found = {}
    for name, sizes in {"first": [4 - rank, 4, 4], "last": [4, 4, 4 - rank]}.items():
        planned, eager = Training(residual()), Training(residual())
        monet.apply(planned.model, budget="97%", **HASTE)
        for training in (planned, eager):
            for step, size in enumerate(sizes):
                training.step(images(rank, step, size))
        found[name] = {"same": same(planned, eager), "counts": counts(planned.model)}
    return found


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The kind and the text of the error."""
    try:
        call()
    except MonetError as error:
        return type(error).__name__, str(error)
    return "", ""


def refusals(rank: int) -> dict[str, tuple[str, str]]:
    """What every process is told where one of them cannot go on."""
    found = {}

    other = perceptron()
    if rank == 1:
        other[1] = nn.ReLU()  # the same parameters, and another step
    monet.apply(other, budget="100%", **HASTE)
    found["another model"] = refused(lambda: Training(other).step(rows(rank, 0)))

    small = perceptron()
    monet.apply(small, budget="1KB", **HASTE)
    found["too small"] = refused(lambda: Training(small).step(rows(rank, 0)))

    adding = perceptron()
    monet.apply(adding, budget="100%", accumulate=True, **HASTE)
    found["accumulate"] = refused(lambda: Training(adding).step(rows(rank, 0)))

    threads = perceptron()
    monet.apply(threads, budget="100%", **HASTE)
    torch.set_num_threads(1 + rank)
    found["threads"] = refused(lambda: Training(threads).step(rows(rank, 0)))
    torch.set_num_threads(1)

    own = perceptron()
    monet.apply(own, monet.plan(own, rows(rank, 0), budget="100%" if rank == 0 else "99%", **HASTE))
    found["own plans"] = refused(lambda: Training(own).step(rows(rank, 0)))
    return found


def _sharded_blocks(mesh: Any, *, planned: bool) -> nn.Sequential:
    """Three blocks that are sharded each, and what is left of the model."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    for block in blocks:
        if planned:
            monet.apply(block, budget="100%", process_group=dist.group.WORLD, **HASTE)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor()
    return whole.detach().clone()


def sharded(rank: int) -> dict[str, Any]:
    """FSDP2: planned blocks, each inside of its ``fully_shard``; and what is refused."""
    mesh = init_device_mesh("cpu", (2,))
    seen: list[list[Tensor]] = [[], []]
    models = [_sharded_blocks(mesh, planned=planned) for planned in (True, False)]
    for model, left in zip(models, seen, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(rows(rank, step)).square().mean()
            loss.backward()
            left += [loss.detach(), *(_whole(p.grad) for p in model.parameters())]
            optimizer.step()
        left += [_whole(p) for p in model.parameters()]
    blocks = list(models[0])[:3]
    whole = _sharded_blocks(mesh, planned=False)
    early = perceptron()
    module = monet.MonetModule(early, monet.plan(early, rows(rank, 0), budget="100%", **HASTE))
    fully_shard(early, mesh=mesh)
    compiled = _sharded_blocks(mesh, planned=False)
    monet.apply(compiled, budget="100%", **HASTE)
    spread = distribute_tensor(rows(0, 0), mesh, [Shard(0)])
    plain = perceptron()
    by_plan = monet.MonetModule(plain, monet.plan(plain, rows(rank, 0), budget="100%", **HASTE))
    weight = distribute_tensor(torch.ones(64, 8), mesh, [Shard(0)]).requires_grad_()
    options = {"budget": "100%", **HASTE}
    product = torch.compile(lambda x: torch.tanh(x @ weight), backend="monet", dynamic=False, options=options)
    return {
        "same": all(torch.equal(a, b) for a, b in zip(*seen, strict=True)),
        "counts": [counts(block) for block in blocks],
        "plans": [monet.applied(block).plans[0] for block in blocks],
        "plan": refused(lambda: monet.plan(whole, rows(rank, 0), budget="100%", **HASTE)),
        "module": refused(lambda: module(rows(rank, 0))),
        "apply": refused(lambda: compiled(rows(rank, 0))),
        "input of plan": refused(lambda: monet.plan(perceptron(), spread, budget="100%", **HASTE)),
        "input of module": refused(lambda: by_plan(spread)),
        "backend": refused(lambda: product(spread)),
    }


def main(rank: int, folder: Path, cases: Sequence[str]) -> None:
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    placement.ORDER_S = 2.0  # as the fixture hasty_orders
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=LONG)
    results = {case: globals()[case](rank) for case in cases}
    dist.barrier()
    dist.destroy_process_group()
    torch.save(results, folder / f"rank{rank}")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
