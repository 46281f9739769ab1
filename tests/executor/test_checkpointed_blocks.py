"""Steps whose blocks run again, as with ``torch.utils.checkpoint``: bit by bit eager's."""

from __future__ import annotations

import pytest
import torch
from eager_reference import compare_steps, is_exact
from module_cases import CASES
from small_models import Transformer
from smallest_budget import at_smallest_budget

from monet.ops.offers.offering import Offering
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.baselines.blocks import repeated_blocks

pytestmark = pytest.mark.usefixtures("hasty_orders")

LAYERS = 3


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(7)
    return Transformer(layers=LAYERS)


@pytest.fixture(scope="module")
def prepared(model: Transformer) -> Prepared:
    return prepare(model, *CASES["transformer"][1](0), offering=Offering(exact=True))


def ran_again(prepared: Prepared, result: PlanResult) -> list[int]:
    place = {operator.id: i for i, operator in enumerate(prepared.problem.forward)}
    return [place[run.operator] for stage in result.solution.runs.stages for run in stage.recompute]


@pytest.mark.parametrize("variant", ["block", "sqrt-n-blocks", "selective"])
@pytest.mark.sampled(3)
def test_blocks_run_again_are_eagers(variant: str, model: Transformer, prepared: Prepared) -> None:
    (found,) = repeated_blocks(prepared.problem)
    assert found.count == LAYERS
    result = at_smallest_budget(lambda budget: plan_prepared(prepared, budget, variant=variant))
    again = ran_again(prepared, result)
    blocks = {(i - found.first) // found.period for i in again}
    # The last group is kept whole where that needs no more.
    assert blocks == set(range(LAYERS)) or (variant == "sqrt-n-blocks" and blocks == set(range(LAYERS - 1)))
    kinds = {prepared.problem.forward[i].kind for i in again}
    assert kinds == ({""} if variant == "selective" else {"", "matmul"})
    planned = compare_steps(model, result.plan, CASES["transformer"][1])
    assert is_exact(planned)
