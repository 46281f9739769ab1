"""Plans that are changed at random: the verifier refuses them, or nothing that anybody sees has changed."""

from __future__ import annotations

import random
from collections.abc import Callable

from plan_contents import EAGER, LAZY, Seen

from monet.errors import InvalidPlan
from monet.plans.plan import Plan
from monet.plans.verifier import verify


def assert_refused_or_harmless(
    plan: Plan, mutated: Callable[[Plan, random.Random], Plan], mutations: int, seen: Callable[[Plan, str | int], Seen]
) -> None:
    """``mutated`` changes a plan, ``mutations`` times; ``seen``: what steps find, by a timing of copies."""
    expected = seen(plan, EAGER)
    refused = same = 0
    for seed in range(mutations):
        other = mutated(plan, random.Random(seed))
        if other == plan:
            continue
        try:
            verify(other)
        except InvalidPlan:
            refused += 1
            continue
        same += 1
        for timing in (EAGER, LAZY, seed):
            assert seen(other, timing) == expected, f"mutation {seed} changes what operators or the next step find"
    assert refused >= mutations // 3 and same >= mutations // 50
