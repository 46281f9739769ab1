"""MONeT's ablation: the same problem with only some kinds of implementations to choose from.

Shah et al., MONeT, ICLR 2021, figures 3, 4 and 6: starting from recomputation alone, one kind of freedom
is given at a time. The first implementation of an operator is its default (eager's kernel); what another
one adds to it is read off its structure, never off its name::

    in-place      overwrites an input, or makes its gradient in more of the incoming one's buffer
    intermediate  its backward reads an intermediate
    output        its backward reads other tensors than the default's, and no intermediate
    algorithm     none of these: the same reads and buffers, another time and workspace

An implementation is offered if the variant allows all that it adds. The freedom to choose algorithms is
called ``conv`` after the paper, whose only such choices are convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from monet.errors import ConfigError
from monet.planner.problem import BackwardImplementation, BackwardOperator, ForwardOperator, Problem

_ALGORITHM, _OUTPUT, _INTERMEDIATE, _IN_PLACE = "algorithm", "output", "intermediate", "in-place"

MONET = "monet"
"""The variant that may choose from everything."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "none": frozenset(),
    "conv": frozenset({_ALGORITHM}),
    "output-activated": frozenset({_OUTPUT}),
    "intermediate-activated": frozenset({_INTERMEDIATE}),
    "in-place": frozenset({_IN_PLACE}),
    MONET: frozenset({_ALGORITHM, _OUTPUT, _INTERMEDIATE, _IN_PLACE}),
}
"""What implementations may add to the default, by variant. ``none`` is the paper's MONeT-NoOp."""

ENCODINGS = frozenset({"sparse", "half"})
"""Kinds of intermediates that are Gist's, not MONeT's: no variant reads them."""


def restrict(problem: Problem, variant: str) -> Problem:
    """``problem`` with the implementations that ``variant`` allows; every solution of it is one of ``problem``.

    Intermediates that nothing reads any more are left out. ``monet`` leaves out no more than what reads
    intermediates of the kinds ``sparse`` and ``half``.

    Raises:
        ConfigError: there is no such variant.
    """
    if variant not in ALLOWED:
        raise ConfigError(f"there is no variant {variant!r}; choose one of {', '.join(ALLOWED)}")
    kinds = {v.id: v.kind for v in problem.intermediates}
    if variant == MONET and not ENCODINGS.intersection(kinds.values()):
        return problem
    forward = tuple(_forward(operator, ALLOWED[variant]) for operator in problem.forward)
    backward = tuple(_backward(operator, ALLOWED[variant], kinds) for operator in problem.backward)
    read = {name for operator in backward for q in operator.implementations for name in q.reads}
    intermediates = tuple(v for v in problem.intermediates if v.id in read)
    return replace(problem, forward=forward, intermediates=intermediates, backward=backward)


def _forward(operator: ForwardOperator, allowed: frozenset[str]) -> ForwardOperator:
    default, *others = operator.implementations
    added = {q.name: _ALGORITHM if q.overwrites in (None, default.overwrites) else _IN_PLACE for q in others}
    return replace(operator, implementations=(default, *(q for q in others if added[q.name] in allowed)))


def _backward(operator: BackwardOperator, allowed: frozenset[str], kinds: Mapping[str, str]) -> BackwardOperator:
    default, *others = operator.implementations
    offered = [q for q in others if not any(kinds.get(name) in ENCODINGS for name in q.reads)]
    kept = [q for q in offered if _added(q, default, kinds) <= allowed]
    return replace(operator, implementations=(default, *kept))


def _added(q: BackwardImplementation, default: BackwardImplementation, kinds: Mapping[str, str]) -> frozenset[str]:
    """What ``q`` adds to the default."""
    added = set()
    if set(q.reads) != set(default.reads):
        added.add(_INTERMEDIATE if any(name in kinds for name in q.reads) else _OUTPUT)
    if q.aliased_bytes > default.aliased_bytes:
        added.add(_IN_PLACE)
    return frozenset(added or {_ALGORITHM})
