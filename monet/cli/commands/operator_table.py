"""The table of operators in docs/operators.md, read from what the registry offers for the sample programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tqdm import tqdm

from monet.base.graph import Graph, Operator, operator_inputs, references
from monet.capture import Captured, capture
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample
from monet.ops.registry import RECORDS

_HEADER = """# Operators

Written by `monet operators`, which reads it from the registry of implementations (`ops/registry.py`) by capturing
each operator's sample programs. A plan chooses one implementation for every run of every operator; the first of each
pass is eager's own kernel.

- *reads*: what must be in memory, besides the gradient of the output in a backward pass. What is not named is not kept;
  `shape only` is a kernel that is called with a stand-in without memory.
- *memory*: whose memory the result takes, if not its own. Workspaces are measured on the machine that plans, for each
  shape, and have a place in the arena.
- *result*: `bitwise` equal to eager's, or within a relative error (of a sum: relative to the sum of the terms'
  magnitudes). `--exact` leaves out all but the bitwise ones.
- *guard*: a scale that the implementation divides by, and its least magnitude (over the shift, where that is above 1).
  Planning leaves it out where a scale is under ten times that, and each step checks it.
- *dtypes*: in which of the samples' it is offered.

An operator that is not here is run by its own aten kernels, forward and backward, in place where it is one of the
elementwise operators in `ops/offers/generic.py`.
"""
_SHORT = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation of one operator in one pass."""

    step: str
    name: str
    reads: str
    memory: str
    result: str


@cache
def captured_sample(sample: Sample, dtype: torch.dtype) -> tuple[torch.nn.Module, Captured, Catalogue]:
    """The sample's program, captured, with all that is offered for it."""
    module = sample.module(dtype)
    found = capture(module, sample.inputs(dtype))
    return module, found, catalogue(found.graph)


def rows(record: Record) -> dict[Row, tuple[torch.dtype, ...]]:
    """What the record offers in its samples, and in which dtypes."""
    found: dict[Row, set[torch.dtype]] = {}
    order: list[torch.dtype] = []
    for sample in record.samples:
        for dtype in sample.dtypes:
            order += [dtype] if dtype not in order else []
            _, captured, offers = captured_sample(sample, dtype)
            for row in _rows_of(record, captured.graph, offers):
                found.setdefault(row, set()).add(dtype)
    return {row: tuple(d for d in order if d in dtypes) for row, dtypes in found.items()}


def _rows_of(record: Record, graph: Graph, offers: Catalogue) -> Iterator[Row]:
    partners = [op for op in graph.forward if op.target in record.forward_targets]
    for op in partners:
        for saved in offers.intermediates.get(op.name, ()):
            yield _row("saved", saved.implementation, op, offers)
        for implementation in offers.forward.get(op.name, {}).values():
            yield _row("forward", implementation, op, offers)
        for implementation in offers.recompute.get(op.name, {}).values():
            if implementation.name not in offers.forward[op.name]:
                yield _row("recompute", implementation, op, offers)
    for op in graph.backward:
        if op.target in record.backward_targets:
            partner = _partner(op, partners, graph)
            for implementation in offers.backward.get(op.name, {}).values():
                yield _row("backward", implementation, partner, offers)


def _partner(op: Operator, partners: list[Operator], graph: Graph) -> Operator | None:
    """The forward operator that shares most storages with a backward operator."""
    read = {graph.storage(name) for name in operator_inputs(op)}

    def shared(other: Operator) -> int:
        names = [*operator_inputs(other), *(n for n in other.outputs if n is not None)]
        return len(read & {graph.storage(name) for name in names})

    return max(partners, key=shared, default=None)


def _row(step: str, implementation: Implementation, op: Operator | None, offers: Catalogue) -> Row:
    names = {_role(name, op, offers): None for name in implementation.inputs()}
    names.pop("gradient", None)
    taken = implementation.overwrites
    memory = "" if taken is None else f"in place of {_role(taken, op, offers)}"
    result = "bitwise" if implementation.exact else f"{implementation.tolerance:.0e}"
    if implementation.guard is not None:
        result += f"; guard {_role(implementation.guard.scale, op, offers)} ≥ {implementation.guard.least:g}"
    # Numbers of chunks depend on the batch.
    name = re.sub(r"(?<=chunks-)\d+", "N", implementation.name)
    return Row(step, name, ", ".join(names) or ("shape only" if step == "backward" else ""), memory, result)


def _role(name: str, op: Operator | None, offers: Catalogue) -> str:
    """What a value is to the forward operator ``op``."""
    for made in offers.intermediates.values():
        for saved in made:
            if saved.value.name == name:
                return f"saved {saved.kind}"
    if name.endswith(".rng"):
        return "generator state"
    graph, storage = offers.graph, offers.storage(name)
    if op is not None:
        for position, output in enumerate(op.outputs):
            if output is not None and graph.storage(output) == storage:
                return "output" if position == 0 else f"result {position}"
        for argument, value in zip(_arguments(op), (*op.args, *(v for _, v in op.kwargs)), strict=False):
            if any(graph.storage(n) == storage for n in references(value)):
                return "input" if argument in ("self", "input") else argument
    if (source := next((s for s in graph.sources if s.value == name), None)) is not None:
        return f"{source.kind} {source.target.rpartition('.')[2]}"
    backward = {n for other in graph.backward for n in other.outputs} | {n for n in graph.tangents if n is not None}
    if name in backward or storage in backward:
        return "gradient"
    maker = next((other for other in graph.forward if storage in other.outputs), None)
    return "another value" if maker is None else f"result of {str(maker.target).split('.')[1]}"


def _arguments(op: Operator) -> list[str]:
    schema: Any = getattr(op.target, "_schema", None)
    positional = [argument.name for argument in schema.arguments][: len(op.args)]
    return [*positional, *(key for key, _ in op.kwargs)]


def _targets(record: Record) -> str:
    """The record's operators of both passes, each once."""
    names = (str(target) for target in (*record.forward_targets, *record.backward_targets))
    short = (name.removeprefix("aten.").removesuffix(".default") for name in names)
    return ", ".join(dict.fromkeys(f"`{name}`" for name in short))


def table(progress: bool = False) -> str:
    """The whole document, as Markdown. ``progress``: a line on stderr."""
    lines = [_HEADER]
    families = dict.fromkeys(record.family for record in RECORDS)
    of_family = [record for family in families for record in RECORDS if record.family == family]
    with tqdm(of_family, desc="capturing samples", disable=not progress, leave=False) as bar:
        family = None
        for record in bar:
            if record.family != family:
                family = record.family
                lines.append(f"## {family.capitalize()}\n")
            lines.append(f"**{record.name}** ({_targets(record)}). {record.equations}.\n")
            lines.append("| pass | implementation | reads | memory | result | dtypes |\n|---|---|---|---|---|---|")
            for row, dtypes in rows(record).items():
                kinds = " ".join(_SHORT[dtype] for dtype in dtypes)
                lines.append(f"| {row.step} | {row.name} | {row.reads} | {row.memory} | {row.result} | {kinds} |")
            lines.append("")
    return "\n".join(lines)
