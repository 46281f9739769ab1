"""Walks that leave room for what later stages hold."""

from __future__ import annotations

import math
from dataclasses import replace

from planner_problems import chain

from monet.planner.construction.first_plans import construct
from monet.planner.construction.passes import backward_pass, forward_pass
from monet.planner.construction.walk import Walk, aheads
from monet.planner.problem import ForwardImplementation, ForwardOperator, Problem, Tensor
from monet.planner.program.index import index_of
from monet.planner.replay import replay


def growing(length: int) -> Problem:
    """A chain of large and small tensors whose gradients add up: the last stages are the tightest."""
    problem = chain(length)
    tensors = tuple(replace(t, bytes=60 if i % 3 else 20) for i, t in enumerate(problem.tensors))
    backward = tuple(
        replace(
            operator,
            live_before_bytes=operator.live_before_bytes + 60 * stage // length,
            live_during_bytes=operator.live_during_bytes + 60 * stage // length,
        )
        for stage, operator in enumerate(problem.backward)
    )
    return replace(problem, tensors=tensors, backward=backward)


def test_a_walk_that_looks_at_the_moment_only_ends_without_room() -> None:
    problem, budget_bytes = growing(6), 150
    index = index_of(problem)
    walk = Walk(index, budget_bytes, thrifty=False)
    assert forward_pass(walk) is not None
    assert backward_pass(walk) is None, "the problem tests nothing"
    runs = construct(index, budget_bytes)
    assert runs is not None and replay(problem, runs).peak_bytes <= budget_bytes


def test_room_is_left_for_gradients_that_stay() -> None:
    later = aheads(index_of(growing(6)))
    assert later[0] == () and len(later) == 3
    half, whole = later[1:]
    assert whole[0] > 0 and whole[-1] == 0 and list(whole) == sorted(whole, reverse=True)
    assert all(abs(2 * a - b) <= 1 for a, b in zip(half, whole, strict=True))
    # Where nothing adds up, nothing is left free.
    flat = chain(6)
    even = replace(flat, backward=tuple(replace(o, live_before_bytes=4, live_during_bytes=8) for o in flat.backward))
    assert aheads(index_of(even)) == [()]


def test_what_is_left_free_is_no_demand() -> None:
    problem = growing(6)
    index = index_of(problem)
    impossible = (10**6,) * len(problem.backward)
    walk = Walk(index, 10**5, thrifty=False, ahead=impossible, deadline_s=math.inf)
    assert len(forward_pass(walk) or ()) == len(backward_pass(walk) or ()) == 6


def test_the_first_stage_ends_without_what_is_never_read() -> None:
    """A pinned tensor stays in a forward pass that is told to keep it."""
    problem = chain(6)
    unread = ForwardOperator("unread", (), ("unread",), (ForwardImplementation("plain", 0.001),))
    problem = replace(
        problem, forward=(unread, *problem.forward), tensors=(*problem.tensors, Tensor("unread", 30, pinned=True))
    )
    index = index_of(problem)
    walk = Walk(index, 200, thrifty=False)
    assert forward_pass(walk, index.last.keys() | index.pinned) is not None
    assert "unread" in walk.present
    assert backward_pass(walk) is not None
    assert walk.present == set()


def test_a_trial_that_is_undone_has_changed_nothing() -> None:
    walk = Walk(index_of(growing(6)), 10**5, thrifty=False)
    assert forward_pass(walk) is not None
    before, size, peak = set(walk.present), walk.present_bytes, walk.peak_bytes
    first, *others = sorted(walk.present)
    mark = walk.begin(thrifty=True)
    walk.drop(others)
    inner = walk.begin(thrifty=False)
    walk.take(others[:1])
    walk.drop([first])
    again = walk.undo(inner)
    assert walk.present == {first} and walk.thrifty
    walk.adopt(again)
    assert walk.present == {others[0]}
    changes = walk.undo(mark)
    assert (walk.present, walk.present_bytes, walk.peak_bytes, walk.thrifty) == (before, size, peak, False)
    walk.adopt(changes)
    assert walk.present == {others[0]} and walk.present_bytes == walk.index.size[others[0]]
