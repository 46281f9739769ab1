"""Plans that carry state from step to step in a second memory: every order of copies that loses some is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from copy_corruptions import at, in_order, index_of, moved_step, with_new_step, without_step
from plan_contents import EAGER, LAZY, contents_seen
from plan_corruptions import with_buffer, with_step
from plan_mutations import assert_refused_or_harmless

from monet.errors import InvalidPlan
from monet.planner.layout import Lifetime, layout
from monet.plans.copies import carried_places, check_copies
from monet.plans.format import COPY_ALIGNMENT, READ, WAIT, WRITE, Buffer, PlanStep, whole_blocks
from monet.plans.plan import Plan
from monet.plans.verifier import verify

UPDATES, BYTES = 4, 5000
W, W_AGAIN, Z = 60, 61, 62  # buffers
MUTATIONS = 1000


def carried_plan() -> Plan:
    """Four updates, the state of each read two steps before and waited for two steps after. The last one changes a
    parameter, too, which is read for the forward pass and once more for the backward pass. A frozen one is read."""
    w, z = (UPDATES * whole_blocks(BYTES), (UPDATES + 1) * whole_blocks(BYTES))
    steps: list[PlanStep] = [
        PlanStep(READ, "w", "copy", {}, {}, (W,), (BYTES,), 0, place=w),
        PlanStep(READ, "z", "copy", {}, {}, (Z,), (BYTES,), 0, place=z),
        PlanStep(WAIT, "w", "copy", {}, {"w": W}, (), (), 0, place=w),
        PlanStep("forward", "f", "aten", {"w": W}, {"x": 100}, (100,), (64,), 0),
        PlanStep(WAIT, "z", "copy", {}, {"z": Z}, (), (), 0, place=z),
        PlanStep("forward", "h", "aten", {"z": Z, "x": 100}, {}, (), (), 0),
    ]
    for n in range(UPDATES):
        s, g, place = f"s{n}", f"g{n}", n * whole_blocks(BYTES)
        steps += [
            PlanStep(READ, s, "copy", {}, {}, (n,), (BYTES,), 0, place=place),
            PlanStep("backward", f"b{n}", "aten", {"x": 100}, {g: 10 + n}, (10 + n,), (256,), 0),
            PlanStep(WAIT, s, "copy", {}, {s: n}, (), (), 0, place=place),
            PlanStep("update", f"u{n}", "aten", {g: 10 + n, s: n}, {f"{s}+1": n}, (), (), 0),
            PlanStep(WRITE, f"{s}+1", "copy", {f"{s}+1": n}, {}, (), (), 0, place=place),
            PlanStep("backward", f"c{n}", "aten", {"x": 100}, {}, (), (), 0),
            PlanStep(WAIT, f"{s}+1", "copy", {f"{s}+1": n}, {}, (), (), 0, place=place),
        ]
        if n == UPDATES - 1:
            steps[-4] = PlanStep(
                "update", f"u{n}", "aten", {g: 10 + n, s: n, "w": W_AGAIN}, {f"{s}+1": n, "w+1": W_AGAIN}, (), (), 0
            )
            steps[-6:-6] = [PlanStep(READ, "w", "copy", {}, {}, (W_AGAIN,), (BYTES,), 0, place=w)]
            steps[-4:-4] = [PlanStep(WAIT, "w", "copy", {}, {"w": W_AGAIN}, (), (), 0, place=w)]
            steps[-3:-3] = [PlanStep(WRITE, "w+1", "copy", {"w+1": W_AGAIN}, {}, (), (), 0, place=w)]
            steps += [PlanStep(WAIT, "w+1", "copy", {"w+1": W_AGAIN}, {}, (), (), 0, place=w)]
    sizes = {
        100: 64,
        W: BYTES,
        W_AGAIN: BYTES,
        Z: BYTES,
        **{n: BYTES for n in range(UPDATES)},
        **{10 + n: 256 for n in range(UPDATES)},
    }
    names = {
        100: "x",
        W: "w",
        W_AGAIN: "w",
        Z: "z",
        **{n: f"s{n}" for n in range(UPDATES)},
        **{10 + n: f"g{n}" for n in range(UPDATES)},
    }
    drafts = tuple(Buffer(id, names[id], size, 0, 0, 1, 0, 0) for id, size in sizes.items())
    second = (UPDATES + 2) * whole_blocks(BYTES)
    plan = in_order(Plan(1 << 20, 0, 0, 0, {}, (), drafts, second), steps)
    lifetimes = [Lifetime(b.id, whole_blocks(b.bytes), b.begin, b.end) for b in plan.buffers]
    placed = layout(lifetimes, alignment=COPY_ALIGNMENT)
    buffers = tuple(replace(b, offset=offset) for b, offset in zip(plan.buffers, placed.offsets, strict=True))
    return replace(plan, buffers=buffers, arena_bytes=placed.arena_bytes, arena_bound_bytes=placed.arena_bytes)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return carried_plan()


def test_the_plan_is_valid_and_shares_memory(plan: Plan) -> None:
    verify(plan)
    assert carried_places(plan) == {n * whole_blocks(BYTES) for n in range(UPDATES + 2)}
    assert plan.arena_bytes < (UPDATES + 2) * BYTES
    expected = contents_seen(plan, EAGER)
    carried = dict(expected[-1][1])
    assert len(carried) == UPDATES + 2 and 0 not in carried.values()
    for timing in (LAZY, 1, 2, 3):
        assert contents_seen(plan, timing) == expected


def update_before_the_wait(plan: Plan) -> Plan:
    return moved_step(plan, at(plan, WAIT, "s1", back=True), at(plan, "update", "u1"))


def not_written_back(plan: Plan) -> Plan:
    k = at(plan, WRITE, "s1+1")
    return without_step(without_step(plan, at(plan, WAIT, "s1+1")), k)


def nothing_waits_for_the_write(plan: Plan) -> Plan:
    return without_step(plan, at(plan, WAIT, "s1+1"))


def written_before_the_update(plan: Plan) -> Plan:
    k = at(plan, WRITE, "s1+1")
    early = replace(plan.steps[k], node="s1", reads={"s1": 1})
    return in_order(plan, [*plan.steps[: k - 1], early, plan.steps[k - 1], *plan.steps[k + 1 :]])


def no_update(plan: Plan) -> Plan:
    """What was read is written back as it was."""
    steps = []
    for step in without_step(plan, at(plan, "update", "u1")).steps:
        if step.node == "s1+1":
            step = replace(step, node="s1", reads={"s1": 1})
        steps.append(step)
    return replace(in_order(plan, steps))


def changed_by_a_backward_step(plan: Plan) -> Plan:
    return with_step(plan, at(plan, "update", "u1"), kind="backward")


def read_twice(plan: Plan) -> Plan:
    """The second time what the update left."""
    k = at(plan, WAIT, "s1+1")
    again = replace(plan.steps[at(plan, READ, "s1")], node="s1+1", requests=(50,))
    wait = PlanStep(WAIT, "s1+1", "copy", {}, {"s1+1": 50}, (), (), 0, place=again.place)
    more = replace(plan, buffers=(*plan.buffers, Buffer(50, "s1+1", BYTES, plan.arena_bytes, 0, 1, 0, 0)))
    more = replace(more, arena_bytes=more.arena_bytes + whole_blocks(BYTES))
    return with_new_step(with_new_step(more, k + 1, again), k + 2, wait)


def read_by_an_update_and_not_changed(plan: Plan) -> Plan:
    k = at(plan, "update", "u3")
    other = with_step(plan, k, writes={name: id for name, id in plan.steps[k].writes.items() if name != "w+1"})
    return without_step(without_step(other, at(plan, WAIT, "w+1")), at(plan, WRITE, "w+1"))


def two_places_of_one_state(plan: Plan) -> Plan:
    steps = [replace(s, node="s0") if s.node == "s1" and s.kind == READ else s for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def freed_before_it_is_written(plan: Plan) -> Plan:
    k = at(plan, WAIT, "s1+1")
    return with_buffer(plan, index_of(plan, 1), end=k, last=k - 1)


def the_next_state_in_its_memory(plan: Plan) -> Plan:
    """While its write is under way."""
    k = at(plan, READ, "s2")
    early = moved_step(plan, k, at(plan, WRITE, "s1+1"))
    return with_buffer(early, index_of(early, 2), offset=plan.buffers[index_of(plan, 1)].offset)


def written_to_anothers_place(plan: Plan) -> Plan:
    place = plan.steps[at(plan, READ, "s0")].place
    steps = [replace(s, place=place) if s.node == "s1+1" else s for s in plan.steps]
    return replace(plan, steps=tuple(steps))


REFUSED: list[tuple[Callable[[Plan], Plan], str]] = [
    (update_before_the_wait, "nothing was written there yet|no step makes"),
    (not_written_back, r"'s1': is changed by an update, and not written back for the next step"),
    (nothing_waits_for_the_write, "nothing waits for its write before the step ends"),
    (written_before_the_update, "no update has changed 's1' since it was read"),
    (no_update, "no update has changed 's1' since it was read"),
    (changed_by_a_backward_step, "with 's1', which an update alone may change"),
    (read_twice, r"'s1\+1' has changed in buffer 1 since it was read|issued before the wait for the write"),
    (read_by_an_update_and_not_changed, "reads 'w' and leaves it as it was"),
    (two_places_of_one_state, "has another place in the second memory already|one value and one buffer|nothing waits"),
    (freed_before_it_is_written, "it is in use during steps .* only"),
    (the_next_state_in_its_memory, r"overlap by \d+ bytes"),
    (written_to_anothers_place, "was read|nothing was written to its place|buffer 1 is not that of"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[change.__name__ for change, _ in REFUSED])
def test_refused(plan: Plan, change: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        verify(change(plan))


def test_what_the_replay_of_contents_refuses_too(plan: Plan) -> None:
    unchanged = no_update(plan)
    early = moved_step(unchanged, at(unchanged, WAIT, "s1", back=True), at(unchanged, WRITE, "s1"))
    with pytest.raises(InvalidPlan, match="a read of 's1' is under way"):
        check_copies(early)
    with pytest.raises(InvalidPlan, match="uses buffer 1, into which 's1' is still being read"):
        check_copies(update_before_the_wait(plan))
    k = at(plan, "update", "u3")
    reads, writes = {**plan.steps[k].reads, "w": W}, {**plan.steps[k].writes, "w+1": W}
    with pytest.raises(InvalidPlan, match="changes buffer 60, and 'w' was read again since"):
        check_copies(with_step(plan, k, reads=reads, writes=writes))
    k = at(plan, WRITE, "s1+1")
    with pytest.raises(InvalidPlan, match="buffer 2 is not that of 's1', which is 1"):
        check_copies(with_step(plan, k, reads={"s1+1": 2}))
    with pytest.raises(InvalidPlan, match=r"writes 's1', and the update left 's1\+1'"):
        check_copies(with_step(plan, k, node="s1", reads={"s1": 1}))


def _mutated(plan: Plan, rng: random.Random) -> Plan:
    """A copy or an update elsewhere in the order, another field of one, or another place of a buffer."""
    touched = [k for k, step in enumerate(plan.steps) if step.place is not None or step.kind == "update"]
    k, other = rng.choice(touched), plan.steps[rng.choice(touched)]
    what = rng.choice(("order", "order", "order", "field", "buffer", "without"))
    if what == "order":
        return moved_step(plan, k, min(len(plan.steps) - 1, max(0, k + rng.choice((-7, -3, -2, -1, 1, 2, 3, 7)))))
    if what == "without":
        return without_step(plan, k)
    if what == "buffer":
        n = rng.randrange(len(plan.buffers))
        offset = rng.choice(plan.buffers).offset + rng.choice((-COPY_ALIGNMENT, 0, COPY_ALIGNMENT))
        return with_buffer(plan, n, offset=offset)
    # Which operator a step runs is out of the verifier's reach.
    name = rng.choice(("kind", "reads", "writes", "place", *(("node",) if plan.steps[k].place is not None else ())))
    return with_step(plan, k, **{name: getattr(other, name)})


def test_mutations_are_refused_or_change_nothing(plan: Plan) -> None:
    assert_refused_or_harmless(plan, _mutated, MUTATIONS, lambda other, timing: sorted(contents_seen(other, timing)))
