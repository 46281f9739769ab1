"""What the index offers on a network small enough to follow by hand."""

from __future__ import annotations

from dataclasses import replace

from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.program.windows import windows

KERNEL = ForwardImplementation("kernel", 2e-3, 4)


def backward(stage: int, reads: tuple[str, ...], live_before_bytes: int) -> BackwardOperator:
    return BackwardOperator(
        f"b{stage}", (BackwardImplementation("only", 1e-3, reads),), live_before_bytes, live_before_bytes + 1
    )


def network() -> Problem:
    """Three operators and six stages; b is made from a, the mask of b's signs on demand, and c from b.

    ``before``: bytes of gradients when the stage begins.

    ========  ======  ======  ======  ======  ======  ======
    stage     0       1       2       3       4       5
    reads     c       mask    (idle)  b       (idle)  a
    before    9       6       4       5       7       6
    ========  ======  ======  ======  ======  ======  ======
    """
    return Problem(
        "by hand",
        (Tensor("a", 10), Tensor("b", 8), Tensor("c", 8)),
        (
            ForwardOperator("make a", (), ("a",), (KERNEL,)),
            ForwardOperator("make b", ("a",), ("b",), (KERNEL,)),
            ForwardOperator("make c", ("b",), ("c",), (KERNEL, ForwardImplementation("in place", 1e-3, 0, "b", 8))),
        ),
        (Intermediate("mask", 1, "make b", ("b",), 1e-3),),
        (
            backward(0, ("c",), 9),
            backward(1, ("mask",), 6),
            backward(2, (), 4),
            backward(3, ("b",), 5),
            backward(4, (), 7),
            backward(5, ("a",), 6),
        ),
        0,
    )


def with_operator(problem: Problem, position: int, operator: ForwardOperator) -> Problem:
    return replace(problem, forward=(*problem.forward[:position], operator, *problem.forward[position + 1 :]))


def offering(position: int, *implementations: ForwardImplementation) -> Problem:
    problem = network()
    return with_operator(problem, position, replace(problem.forward[position], implementations=implementations))


def with_pinned(problem: Problem, name: str) -> Problem:
    return replace(problem, tensors=tuple(replace(t, pinned=t.id == name) for t in problem.tensors))


def stages(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def test_who_makes_and_reads_what() -> None:
    index = windows(network(), None)
    assert index.size == {"a": 10, "b": 8, "c": 8, "mask": 1}
    assert index.producer == {"a": 0, "b": 1, "c": 2, "mask": 1}
    assert [[v.id for v in made] for made in index.intermediates] == [[], ["mask"], []]
    assert index.consumers == index.readers_again == {"a": (1,), "b": (2,)}
    assert [set(names) for names in index.reads] == [{"c"}, {"mask"}, set(), {"b"}, set(), {"a"}]


# Last uses.


def test_a_last_use_is_the_last_read() -> None:
    index = windows(network(), None)
    assert index.last == {"a": 5, "b": 3, "c": 0, "mask": 1}
    assert index.needed("b", 3) and not index.needed("b", 4)
    assert not index.needed("unknown", 0)


def test_a_tensor_is_needed_as_long_as_what_is_made_from_it_may_run_again() -> None:
    problem = network()
    problem = replace(problem, backward=(*problem.backward[:5], backward(5, ("c",), 6)))
    # c at stage 5 may be made again from b, and b from a.
    assert windows(problem, None).last == {"a": 5, "b": 5, "c": 5, "mask": 1}
    # c cannot be made again: b is needed until stage 3, and a to make it.
    index = windows(with_operator(problem, 2, replace(problem.forward[2], recomputable=False)), None)
    assert index.last == {"a": 3, "b": 3, "c": 5, "mask": 1}
    assert index.runs_again[2] == () and index.stages_again[2] == stages()
    assert index.readers_again == {"a": (1,)}


def test_what_the_backward_pass_never_needs_has_no_last_use() -> None:
    problem = network()
    problem = replace(problem, backward=(backward(0, (), 9), *problem.backward[1:]))
    index = windows(problem, 2)
    assert "c" not in index.last and "c" not in index.start
    assert index.runs_again[2] == () and index.stages_again[2] == stages()


def test_a_read_of_the_recomputation_alone_counts_for_it_only() -> None:
    rerun = replace(KERNEL, recompute_reads=("a",))
    index = windows(offering(2, rerun), None)
    assert index.consumers == {"a": (1,), "b": (2,)}
    assert index.readers_again == {"a": (1, 2), "b": (2,)}


def test_making_an_intermediate_again_reads_a_pinned_output_that_survived() -> None:
    problem = replace(network(), backward=tuple(backward(t, ("mask",) if t == 4 else (), 1) for t in range(6)))
    assert windows(problem, None).last == {"a": 4, "mask": 4}
    assert windows(with_pinned(problem, "b"), None).last == {"a": 4, "b": 4, "mask": 4}


# Windows and the stages that are offered.


def test_a_window_ends_at_the_last_use() -> None:
    assert windows(network(), None).start == {"a": 0, "b": 0, "c": 0, "mask": 0}
    assert windows(network(), 1).start == {"a": 5, "b": 3, "c": 0, "mask": 1}
    assert windows(network(), 3).start == {"a": 3, "b": 1, "c": 0, "mask": 0}


def test_an_operator_runs_again_in_the_windows_of_all_that_it_makes() -> None:
    assert windows(network(), 1).stages_again == (stages(5), stages(1, 3), stages(0))
    # Stage 4 is idle, and more is in memory at it than at stage 5; stage 2 is idle with less than at stage 3.
    assert windows(network(), 2).stages_again == (stages(5), stages(0, 1, 2, 3), stages(0))
    assert windows(network(), None).stages_again == (stages(0, 1, 2, 3, 5), stages(0, 1, 2, 3), stages(0))


def test_idle_stages_are_offered_where_asked_for() -> None:
    index = windows(network(), 2, offer_idle_stages=True)
    assert index.stages_again == (stages(4, 5), stages(0, 1, 2, 3), stages(0))


def test_also_at_offers_stages_to_one_tensor_and_after_peaks_to_all() -> None:
    index = windows(network(), 1, {"a": stages(2, 4)})
    assert index.start == {"a": 2, "b": 3, "c": 0, "mask": 1}
    assert index.stages_again == (stages(2, 4, 5), stages(1, 3), stages(0))
    # After peaks, an idle stage must be worth it as any other.
    index = windows(network(), 1, after_peaks=stages(2, 4))
    assert index.after_peaks == stages(2, 4)
    assert index.start == {"a": 2, "b": 2, "c": 0, "mask": 1}
    assert index.stages_again == (stages(2, 5), stages(1, 2, 3), stages(0))


def test_no_stage_is_offered_for_a_pinned_output() -> None:
    index = windows(with_pinned(network(), "a"), None)
    assert index.pinned == {"a"}
    assert index.runs_again[0] == () and index.stages_again[0] == stages()
    # The mask of a pinned b may still be made again, up to its own last use.
    assert windows(with_pinned(network(), "b"), None).stages_again[1] == stages(0, 1)


# Implementations.


def names(implementations: tuple[ForwardImplementation, ...] | tuple[BackwardImplementation, ...]) -> list[str]:
    return [q.name for q in implementations]


def test_forward_implementations_are_the_front_of_time_and_memory() -> None:
    offered = (
        ForwardImplementation("slow and large", 3e-3, 5),
        ForwardImplementation("slow and lean", 3e-3, 0),
        KERNEL,
        ForwardImplementation("as good as the kernel", 2e-3, 4),
    )
    index = windows(offering(0, *offered), None)
    assert names(index.runs_forward[0]) == names(index.runs_again[0]) == ["as good as the kernel", "slow and lean"]


def test_recomputation_has_a_front_of_its_own() -> None:
    offered = (KERNEL, ForwardImplementation("quick again", 9e-3, 4, recompute_time_s=1e-3))
    index = windows(offering(0, *offered), None)
    assert names(index.runs_forward[0]) == ["kernel"]
    assert names(index.runs_again[0]) == ["quick again"]


def test_what_destroys_its_input_beats_only_what_destroys_the_same() -> None:
    index = windows(network(), None)
    # In place is faster and leaner, but b is lost.
    assert names(index.runs_forward[2]) == names(index.runs_again[2]) == ["in place", "kernel"]
    slow = ForwardImplementation("slow in place", 3e-3, 0, "b", 8)
    offered = (*network().forward[2].implementations, slow)
    assert names(windows(offering(2, *offered), None).runs_forward[2]) == [
        "in place",
        "kernel",
    ]


def test_a_tensor_that_survives_in_every_plan_is_not_destroyed() -> None:
    index = windows(with_pinned(network(), "b"), None)
    assert names(index.runs_forward[2]) == names(index.runs_again[2]) == ["kernel"]


def test_a_recomputation_does_not_destroy_what_a_later_one_reads() -> None:
    problem = network()
    last = ForwardOperator("make d", ("c",), ("d",), (replace(KERNEL, recompute_reads=("b",)),))
    problem = replace(
        problem,
        tensors=(*problem.tensors, Tensor("d", 8)),
        forward=(*problem.forward, last),
        backward=(backward(0, ("d",), 9), *problem.backward[1:]),
    )
    index = windows(problem, None)
    assert names(index.runs_forward[2]) == ["in place", "kernel"]
    assert names(index.runs_again[2]) == ["kernel"]


def test_a_backward_implementation_must_be_faster_leaner_or_read_less() -> None:
    problem = network()
    offered = (
        BackwardImplementation("reads both", 1e-3, ("a", "b"), 2),
        BackwardImplementation("reads more for nothing", 2e-3, ("a", "b", "c"), 2),
        BackwardImplementation("reads a", 2e-3, ("a",), 2),
        BackwardImplementation("reads b", 3e-3, ("b",), 2),
        BackwardImplementation("reads b with more memory", 4e-3, ("b",), 3),
        BackwardImplementation("reads both, in the gradient's buffer", 4e-3, ("a", "b"), 2, 1),
    )
    stage = replace(problem.backward[5], implementations=offered)
    index = windows(replace(problem, backward=(*problem.backward[:5], stage)), None)
    assert names(index.runs_backward[5]) == [
        "reads both",
        "reads a",
        "reads b",
        "reads both, in the gradient's buffer",
    ]
    assert index.reads[5] == {"a", "b"}
    # The one that read c is not offered, so c's last use stays.
    assert index.last == {"a": 5, "b": 5, "c": 0, "mask": 1}
