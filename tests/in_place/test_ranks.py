"""Plans in parallel training, in two processes: they run one plan, and train as eager PyTorch does, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from ranks import shared_ranks

from monet.native import allocator

pytestmark = pytest.mark.skipif(
    not allocator.available() or not dist.is_available() or not dist.is_gloo_available(), reason="no compiler or gloo"
)
QUICK = ["kinds", "refusals"]
SLOW = ["who_plans", "order_of_buckets", "unused", "modules", "compiled", "other_shapes", "sharded"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each case of ``rank_cases.py`` has found, by rank. Two processes run all of them, once for all workers."""
    return shared_ranks(QUICK, tmp_path_factory)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """As ``found``, for tests that are slow."""
    return shared_ranks(SLOW, tmp_path_factory)


@pytest.mark.parametrize("kind", ["plain", "views", "unused", "static", "hook"])
def test_steps_equal_eager(found: dict[str, list[Any]], kind: str) -> None:
    """With buckets as copies and as views, with searches for unused parameters, with a hook, and with no_sync."""
    first, second = (of_rank[kind] for of_rank in found["kinds"])
    for of_rank in (first, second):
        assert of_rank["same"]
        assert of_rank["counts"] == ((4 if kind == "static" else 7), 0, 1)
        assert of_rank["buckets"] == of_rank["parameters"] > 0
    assert first["plan"] == second["plan"]


@pytest.mark.slow
def test_rank_0_plans_and_all_train_on_the_joined_batch(more: dict[str, list[Any]]) -> None:
    first, second = more["who_plans"]
    assert (first["made"], second["made"]) == ([0], [])
    assert first["plan"] == second["plan"]
    # Sums over halves of the batch, added up, round otherwise than one over all of it.
    assert max(first["apart"], second["apart"]) < 1e-5


@pytest.mark.slow
def test_buckets_are_reduced_between_parts_of_the_backward_pass(more: dict[str, list[Any]]) -> None:
    for events in more["order_of_buckets"]:
        assert events.count("part") > 3
        # Each part fills buckets, which are on their way before the next part begins.
        assert all("bucket" in run for run in "".join(f" {event}" for event in events).split(" part")[1:])


@pytest.mark.slow
def test_parameters_without_a_gradient(more: dict[str, list[Any]]) -> None:
    """Also those of a compiled model, whose graph has never seen some of them: rank 0 plans for all there, too."""
    for rank, of_rank in enumerate(more["unused"]):
        assert of_rank["apply"] == {"same": True, "counts": (3, 0, 1), "made": 1 - rank}
        assert of_rank["compile"] == {"same": True, "made": 1 - rank}
        never = ["never.weight", "never.bias"]
        assert of_rank["without"] == [["beside.weight", "beside.bias", *never], never, never]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["apart", "again", "inside"])
def test_planned_modules_with_plans_of_their_own_are_refused(more: dict[str, list[Any]], which: str) -> None:
    """In every process, and at every call; also those that a larger model has inside."""
    for of_rank in more["modules"]:
        assert of_rank["same"]
        kind, text = of_rank[which]
        assert kind == "PlanMismatch" and text.startswith("rank 1 would run other plans than rank 0")


@pytest.mark.slow
@pytest.mark.parametrize(("which", "counts"), [("same", (0, 1)), ("first", (1, 1)), ("last", (1, 1))])
def test_the_compiled_model_runs_rank_0s_plan(more: dict[str, list[Any]], which: str, counts: tuple[int, int]) -> None:
    """Also where rank 1 meets the shape of rank 0's first batch later; its other shape is its own matter."""
    first, second = (of_rank[which] for of_rank in more["compiled"])
    assert first["same"] and second["same"]
    assert len(first["made"]) == 1 and not first["own"]
    assert (len(second["made"]), len(second["own"])) == counts
    assert second["own"] == first["made"]


@pytest.mark.slow
def test_all_are_told_what_stops_a_compiled_model(more: dict[str, list[Any]]) -> None:
    errors = [of_rank["too small"] for of_rank in more["compiled"]]
    assert [kind for kind, _ in errors] == ["InfeasibleBudget", "MonetError"] and "rank 0" in errors[1][1]
    errors = [of_rank["another model"] for of_rank in more["compiled"]]
    assert [kind for kind, _ in errors] == ["PlanMismatch"] * 2
    assert all("rank 1: the plan was made for another model" in text for _, text in errors)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["first", "last"])
def test_another_batch_in_one_process(more: dict[str, list[Any]], which: str) -> None:
    """Is its own matter: it runs without a plan there, and by the plan elsewhere."""
    first, second = (of_rank[which] for of_rank in more["other_shapes"])
    assert first["same"] and second["same"]
    assert (first["counts"], second["counts"]) == ((3, 0, 1), (2, 1, 1))


@pytest.mark.parametrize(
    ("what", "kinds", "sentence"),
    [
        ("another model", ["PlanMismatch"] * 2, "rank 1: the plan was made for another model"),
        ("threads", ["PlanMismatch"] * 2, "rank 1: the plan was made for"),
        ("own plans", ["PlanMismatch"] * 2, "rank 1 would run other plans than rank 0"),
        ("too small", ["InfeasibleBudget", "MonetError"], "No plan of Sequential fits"),
        ("accumulate", ["ExecutionError", "MonetError"], "DistributedDataParallel would never learn"),
    ],
)
def test_all_are_told_what_stops_one(found: dict[str, list[Any]], what: str, kinds: list[str], sentence: str) -> None:
    errors = [of_rank[what] for of_rank in found["refusals"]]
    assert [kind for kind, _ in errors] == kinds
    assert all(sentence in text for _, text in errors)
    if kinds[1] == "MonetError":
        assert "rank 0" in errors[1][1]


@pytest.mark.slow
def test_planned_blocks_inside_of_fully_shard(more: dict[str, list[Any]]) -> None:
    first, second = more["sharded"]
    for of_rank in (first, second):
        assert of_rank["same"] and of_rank["counts"] == [(3, 0, 1)] * 3
    assert first["plans"] == second["plans"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "kind", "name"),
    [
        ("plan", "CaptureError", "0.0.weight"),
        ("apply", "CaptureError", "0.0.weight"),
        ("module", "PlanMismatch", "parameter 0.weight"),
        ("input of plan", "CaptureError", "input 0"),
        ("input of module", "PlanMismatch", "input 0"),
        ("backend", "CaptureError", "input 0"),
    ],
)
def test_sharded_tensors_are_refused(more: dict[str, list[Any]], what: str, kind: str, name: str) -> None:
    for of_rank in more["sharded"]:
        assert of_rank[what][0] == kind
        assert of_rank[what][1].startswith(f"{name} is a DTensor, and plans are for plain tensors")
