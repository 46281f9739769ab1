"""Lines and modules of a configuration's model that the steps of a plan come from."""

from __future__ import annotations

from monet.base.graph import BUFFER, PARAMETER, Graph, operator_inputs
from monet.errors import PlanMismatch
from monet.executor.module import capture_as_planned
from monet.lab.views.origins import Origins
from monet.models.config import Config
from monet.models.model_loading import build_model, precision
from monet.plans.plan import Plan
from monet.step.training_step.accumulation import with_accumulation

_AFTER = "after "


def model_origins(config: Config, plan: Plan) -> Origins:
    """Empty where nothing is known of a step; a saved intermediate has those of its operator, a copy those of its
    value.

    Raises what ``build_model`` raises, and ``PlanMismatch`` where the plan is of another model.
    """
    if not {"training", "inputs", "fingerprint"} <= plan.model.keys():
        raise PlanMismatch("the plan does not say which model, modes and inputs it is of")
    model = build_model(config)
    with precision(config):
        captured = capture_as_planned(model, plan)
    # The plan is not run, so it may be of another machine, or of a second memory that is not there.
    graph = (with_accumulation(captured).captured if plan.model.get("accumulate") else captured).graph
    if graph.fingerprint() != plan.model.get("fingerprint"):
        raise PlanMismatch(f"the plan is of another model or step than {config.model}, or of another torch")
    lines = {op.name: op.where.strip().removeprefix("at ") for op in (*graph.forward, *graph.backward)}
    modules = modules_of(graph)
    # A copy is called after its value.
    makers = {name: op.name for op in (*graph.forward, *graph.backward) for name in op.outputs if name is not None}
    named = [step.node.partition(".")[0] for step in plan.steps]
    nodes = [node if node in lines else makers.get(node, node) for node in named]
    return Origins(tuple(lines.get(n, "") for n in nodes), modules=tuple(modules.get(n, "") for n in nodes))


def modules_of(graph: Graph) -> dict[str, str]:
    """Operator → the module whose parameters or buffers it reads, ``layer1.0.conv1``; for one that reads none,
    ``after layer1.0.conv1``: that of the value it reads that was made last, of those of the forward pass if it reads
    any. What is known of none is left out."""
    owned = {s.value: s.target.rpartition(".")[0] for s in graph.sources if s.kind in (PARAMETER, BUFFER)}
    made: dict[str, tuple[bool, int, str]] = {}
    found: dict[str, str] = {}
    for position, op in enumerate((*graph.forward, *graph.backward)):
        inputs = operator_inputs(op)
        own = next((owned[name] for name in inputs if owned.get(name)), "")
        _, _, last = max((made[name] for name in inputs if name in made), default=(False, 0, ""))
        if not own and not last:
            continue
        found[op.name] = own or f"{_AFTER}{last}"
        for name in op.outputs:
            if name is not None and op.view and all(value in owned for value in inputs):
                owned[name] = own
            elif name is not None:
                made[name] = position < len(graph.forward), position, own or last
    return found
