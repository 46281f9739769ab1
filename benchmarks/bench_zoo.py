"""Architectures of other libraries: which are planned, whether their gradients are eager's, and what is refused.

python benchmarks/bench_zoo.py [--only timm:resnet] [--at-a-time 2] [--again]   # needs the extras models and zoo

One small member of every module of timm, of every model type of transformers, and of two dozen kinds of diffusers. Each
is planned in a process of its own at 80 % of eager's peak, or in the smallest budget where that does not fit, with
``exact=True``, and runs one step beside eager's: outputs, gradients and buffers are compared bit by bit. What cannot be
made small, or what eager does not run on the made-up input, is not counted. Rows are written as soon as they are
there, in an order by chance.
"""

from __future__ import annotations

import copy
import multiprocessing
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import click
import record
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm
from zoo import diffusers_members, timm_members, transformers_members

import monet
from monet.errors import InfeasibleBudget, MonetError

LIBRARIES = {"transformers": transformers_members, "timm": timm_members, "diffusers": diffusers_members}
BUDGET = "80%"
LIMIT_S = 150.0
SOLVE_S = 5.0
CLOSE = 1e-4
""" "close" is what is off by rounding, of float32: sums of another order, which later operators have made larger."""
COUNTED = ("exact", "close", "wrong", "refused", "traceback", "crashed", "too long")


@click.command()
@click.option("--only", multiple=True, help="Members whose names begin with this; writes no file.")
@click.option("--at-a-time", default=2, show_default=True, help="Processes.")
@click.option("--again", is_flag=True, help="Also those that have a row.")
def main(only: tuple[str, ...], at_a_time: int, again: bool) -> None:
    rows: dict[str, Any] = record.known("zoo")
    wanted = [name for name in _members() if not only or name.startswith(only)]
    missing = [name for name in wanted if again or only or name not in rows]
    random.Random(0).shuffle(missing)  # what is there when it is stopped is a sample
    with tqdm(total=len(missing)) as progress:
        for name, row in _outcomes(missing, at_a_time):
            rows[name] = row
            progress.update()
            if row["outcome"] in COUNTED[1:]:
                progress.write(f"{name}: {row['outcome']}, {row.get('said', '')}")
            if not only:
                record.write("zoo", rows)
    counts = Counter(rows[name]["outcome"] for name in wanted if name in rows)
    run = sum(counts[outcome] for outcome in COUNTED)
    click.echo(", ".join(f"{outcome} {number}" for outcome, number in counts.most_common()))
    click.echo(f"planned and exact: {counts['exact']} of {run} that eager runs ({counts['exact'] / max(run, 1):.1%})")


def _members() -> list[str]:
    return [f"{library}:{name}" for library, module in LIBRARIES.items() for name in module.members()]


class _Running(NamedTuple):
    name: str
    process: BaseProcess
    result: Connection
    until: float


def _outcomes(names: list[str], at_a_time: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each member, as they end. A process that dies takes nothing with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zoo.imports"])
    waiting, running = list(reversed(names)), list[_Running]()
    while waiting or running:
        while waiting and len(running) < at_a_time:
            name = waiting.pop()
            result, send = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(name, torch.get_num_threads() // at_a_time or 1, send))
            process.start()
            send.close()
            running.append(_Running(name, process, result, time.monotonic() + LIMIT_S))
        wait([one.result for one in running], timeout=1.0)
        for one in list(running):
            if one.result.poll():
                row = _received(one)
            elif time.monotonic() > one.until:
                row = {"outcome": "too long"}
            else:
                continue
            one.process.kill()
            one.process.join()
            running.remove(one)
            yield one.name, row


def _received(one: _Running) -> dict[str, Any]:
    try:
        return dict(one.result.recv())
    except EOFError:
        one.process.join()
        return {"outcome": "crashed", "said": f"exit status {one.process.exitcode}"}


def _run(name: str, threads: int, send: Connection) -> None:
    torch.set_num_threads(threads)
    start = time.perf_counter()
    row = _outcome(name)
    send.send(row | {"seconds": round(time.perf_counter() - start, 1)})
    send.close()


def _outcome(name: str) -> dict[str, Any]:
    library, _, member = name.partition(":")
    torch.manual_seed(1)
    try:
        model, calls = LIBRARIES[library].build(member)
    except Exception as error:
        return {"outcome": "unbuilt", "said": _first_line(error)}
    model.train()
    said = ""
    for kwargs in calls:
        try:
            _step(model, kwargs)  # some models are complete after their first call
            break
        except Exception as error:
            said = _first_line(error)
    else:
        return {"outcome": "eager fails", "said": said}
    model.zero_grad(set_to_none=True)
    try:
        eager, repeated = _step(copy.deepcopy(model), kwargs), _step(copy.deepcopy(model), kwargs)
    except Exception as error:  # what is left of the first step is in no copy
        return {"outcome": "eager fails", "said": _first_line(error)}
    if not eager[1]:
        return {"outcome": "eager fails", "said": "no output has a gradient"}
    try:
        planned = copy.deepcopy(model)
        plan, budget = _plan(planned, kwargs)
        found = _step(monet.MonetModule(planned, plan), kwargs)
    except MonetError as error:
        return {"outcome": "refused", "said": f"{type(error).__name__}: {_first_line(error)}"}
    except Exception as error:
        where = traceback.format_exc().splitlines()
        return {"outcome": "traceback", "said": f"{type(error).__name__}: {_first_line(error)}", "trace": where[-25:]}
    off, noise = _most_off(eager, found), _most_off(eager, repeated)
    row = {"budget": budget, "peak_bytes": plan.peak_bytes}
    if off == 0.0:
        return row | {"outcome": "exact"}
    close = off <= max(CLOSE, 4 * noise)
    return row | {"outcome": "close" if close else "wrong", "said": f"{off:.1e}, eager again {noise:.1e}"}


def _plan(model: nn.Module, kwargs: dict[str, Any]) -> tuple[Any, str]:
    options: dict[str, Any] = {"kwargs": kwargs, "exact": True, "time_limit_s": SOLVE_S}
    budget: str | int = BUDGET
    while True:
        try:
            return monet.plan(model, (), budget=budget, **options), str(budget)
        except InfeasibleBudget as error:
            if error.smallest_bytes is None or budget == "100%":
                raise
            budget = error.smallest_bytes if budget == BUDGET else "100%"


def _step(model: nn.Module, kwargs: dict[str, Any]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """A step's outputs, and by name its gradients and the module's buffers after it."""
    torch.manual_seed(2)
    returned = model(**kwargs)
    returned = returned.to_tuple() if hasattr(returned, "to_tuple") else returned
    outputs = [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]
    # Products with numbers of the outputs' own layout: gradients of another one may be added up in another order.
    torch.manual_seed(3)
    losses = [(output * torch.randn_like(output)).real.sum().float() for output in outputs if output.requires_grad]
    if losses:
        sum(losses).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    after = {**gradients, **dict(model.named_buffers())}
    return [output.detach() for output in outputs], after if gradients else {}


def _most_off(eager: tuple[list[Tensor], dict[str, Tensor]], other: tuple[list[Tensor], dict[str, Tensor]]) -> float:
    """The largest difference by the largest number of its tensor, or by a millionth of the largest of all, since some
    gradients are zero but for rounding; infinity where something is missing."""
    if len(eager[0]) != len(other[0]) or eager[1].keys() != other[1].keys():
        return float("inf")
    pairs = [*zip(eager[0], other[0], strict=True), *((eager[1][name], other[1][name]) for name in eager[1])]
    least = 1e-6 * max((_largest(a) for a, _ in pairs), default=0.0)
    return max((_off(a.detach(), b.detach(), least) for a, b in pairs), default=0.0)


def _off(a: Tensor, b: Tensor, least: float) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if torch.equal(a, b) or torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)):
        return 0.0
    return float((a.double() - b.double()).abs().nan_to_num(float("inf")).max()) / max(_largest(a), least, 1e-30)


def _largest(a: Tensor) -> float:
    return float(a.detach().double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


if __name__ == "__main__":
    main()
