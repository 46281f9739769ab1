"""What other programs open: PyTorch's snapshot, a Chrome trace, GraphML; read back as those programs do."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
from large_plan import large_plan
from random_plans import random_plan
from torch.cuda import _memory_viz

from monet.errors import ConfigError
from monet.lab.views.contents import KINDS, loads_by_step, peak
from monet.lab.views.origins import Origins, read_trace
from monet.lab.views.snapshot import ARENA, snapshot, snapshot_bytes
from monet.lab.views.step_graph import graphml_text, step_graph
from monet.lab.views.timeline import timeline_text
from monet.plans.format import READ, WAIT, WRITE, Buffer, PlanStep
from monet.plans.plan import Plan
from monet.plans.verifier import verify

KNOWN_OPCODES = {
    *("PROTO", "APPEND", "APPENDS", "LIST", "TUPLE", "NEWFALSE", "NEWTRUE", "NONE", "BINGET", "BININT", "BININT1"),
    *("BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "SETITEMS", "SETITEM"),
    *("DICT", "SHORT_BINUNICODE", "BINUNICODE", "STOP", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINFLOAT"),
}
"""Of the viewer's reader of pickles."""
LINE = 'File "/home/me/net.py", line 12, in forward'


def moving_plan() -> Plan:
    """One value goes to the second memory and comes back."""
    steps = (
        PlanStep("forward", "relu", "aten", {}, {"relu": 0}, (0,), (4096,), 0),
        PlanStep(WRITE, "relu", "copy", {"relu": 0}, {}, (), (), 1, place=0),
        PlanStep(WAIT, "relu", "copy", {"relu": 0}, {}, (), (), 2, place=0),
        PlanStep(READ, "relu", "copy", {}, {}, (1,), (4096,), 3, place=0),
        PlanStep(WAIT, "relu", "copy", {}, {"relu": 1}, (), (), 4, place=0),
        PlanStep("backward", "grad", "aten", {"relu": 1}, {"grad": 2}, (2,), (100,), 5),
    )
    buffers = (
        Buffer(0, "relu", 4096, 0, 0, 3, 0, 2),
        Buffer(1, "relu", 4096, 0, 3, 6, 3, 5),
        Buffer(2, "grad", 100, 4096, 5, 6, 5, 5, leaves=True),
    )
    fixed = {"parameters": 64}
    return Plan(10_000, 4224, 4224, 64, fixed, steps, buffers, second_bytes=4096, model={"name": "m"})


# -- PyTorch's snapshot


@pytest.mark.parametrize("plan", [*map(random_plan, range(12)), moving_plan()])
def test_a_snapshot_is_consistent(plan: Plan) -> None:
    """What PyTorch's viewer and tools take for granted: blocks cover their segments, what is freed was allocated there,
    nothing overlaps, and what is allocated at the end is what the blocks say."""
    verify(plan)
    found = pickle.loads(snapshot_bytes(plan))
    assert found == snapshot(plan)
    segments = {(s["address"], s["address"] + s["total_size"]): s for s in found["segments"]}
    assert sum(s["total_size"] for s in segments.values()) == plan.arena_bytes + plan.fixed_bytes
    for (begin, end), segment in segments.items():
        at = begin
        for block in segment["blocks"]:
            assert block["address"] == at and block["size"] == block["requested_size"] > 0
            at += block["size"]
        assert at == end and segment["device"] == 0
    active: dict[int, int] = {}
    time = most = 0
    for event in found["device_traces"][0]:
        assert event["time_us"] >= time
        time, size, at = event["time_us"], event["size"], event["addr"]
        assert any(begin <= at and at + size <= end for begin, end in segments)
        if event["action"] == "alloc":
            assert all(at + size <= other or other + bytes_ <= at for other, bytes_ in active.items())
            active[at] = size
        elif event["action"] == "free_requested":
            assert active[at] == size
        else:
            assert event["action"] == "free_completed" and active.pop(at) == size
        most = max(most, sum(active.values()))
    highest = peak(plan)
    assert most == plan.fixed_bytes + (0 if highest is None else highest.load_bytes)
    blocks = [block for segment in segments.values() for block in segment["blocks"]]
    kept = {block["address"]: block["size"] for block in blocks if block["state"] == "active_allocated"}
    assert kept == active
    assert {at - ARENA for at in kept if at < ARENA + plan.arena_bytes} == {b.offset for b in plan.buffers if b.leaves}


def test_the_viewer_can_read_the_pickle() -> None:
    """It knows protocols 2 to 4, needs an event of the category ``unknown``, and PyTorch's own tools read the rest."""
    plan = random_plan(6)
    data = snapshot_bytes(plan, Origins((LINE,) * len(plan.steps)))
    assert next(pickletools.genops(data))[1] == 4
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= KNOWN_OPCODES
    found = pickle.loads(data)
    events = found["device_traces"][0]
    assert "unknown" in {event["category"] for event in events} <= {"unknown", *KINDS}
    assert {"filename": "/home/me/net.py", "line": 12, "name": "forward"} in events[-1]["frames"]
    assert "alloc" not in _memory_viz.trace(found) and "TOTAL MEM" in _memory_viz.trace(found)
    assert "snapshot.pickle" in _memory_viz.trace_plot(found)
    assert _memory_viz.segsum(found)


def test_many_buffers_in_a_small_snapshot() -> None:
    assert len(snapshot_bytes(large_plan(20_000))) < 20_000 * 300


# -- Timeline


@pytest.mark.parametrize("seed", range(6))
def test_a_timeline_in_ticks(seed: int) -> None:
    plan = random_plan(seed)
    found = json.loads(timeline_text(plan))
    steps = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert found["otherData"]["time"] == "ticks"
    assert [(event["name"], event["cat"], event["ts"]) for event in steps] == [
        (step.node, step.kind, step.begin) for step in plan.steps
    ]
    for event, after in pairwise(steps):
        assert event["ts"] + event["dur"] == after["ts"]
    counters = [event["args"] for event in found["traceEvents"] if event["ph"] == "C"]
    assert [tuple(args[kind] for kind in KINDS) for args in counters] == list(loads_by_step(plan))
    assert {args["fixed"] for args in counters} == {plan.fixed_bytes}
    names = [e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"]
    assert names == ["one step, in ticks (1 µs is one tick)"]


def test_a_timeline_in_seconds() -> None:
    plan = random_plan(1)
    seconds = tuple(0.001 * (k + 1) for k in range(len(plan.steps)))
    found = json.loads(timeline_text(plan, Origins((LINE,) * len(plan.steps), seconds, seconds)))
    steps = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert found["otherData"]["time"] == "predicted seconds"
    assert [event["dur"] for event in steps] == pytest.approx([1000 * (k + 1) for k in range(len(steps))])
    assert steps[-1]["ts"] + steps[-1]["dur"] == pytest.approx(1e6 * sum(seconds))
    assert steps[0]["args"]["line"] == LINE


def test_copies_in_a_timeline_are_as_long_as_they_are_under_way() -> None:
    found = json.loads(timeline_text(moving_plan(), Origins(("",) * 6, (1.0,) * 6, (1.0,) * 6)))
    copies = [e for e in found["traceEvents"] if e["ph"] in "be"]
    assert [(e["ph"], e["id"], e["name"], e["ts"]) for e in copies] == [
        ("b", 0, "write relu", 1e6), ("e", 0, "write relu", 3e6), ("b", 1, "read relu", 3e6), ("e", 1, "read relu", 5e6)
    ]  # fmt: skip


# -- Graph


@pytest.mark.parametrize("seed", range(6))
def test_a_graph_has_what_steps_read(seed: int) -> None:
    plan = random_plan(seed)
    read = nx.read_graphml(io.BytesIO(graphml_text(plan).encode()), force_multigraph=True)
    assert [read.nodes[str(k)]["node"] for k in range(len(plan.steps))] == [step.node for step in plan.steps]
    edges = sorted((int(b), e["value"], e["buffer"]) for _, b, e in read.edges(data=True))
    assert edges == sorted((k, v, n) for k, step in enumerate(plan.steps) for v, n in step.reads.items())
    for a, b, edge in read.edges(data=True):
        assert int(a) < int(b) and plan.steps[int(a)].writes[edge["value"]] == edge["buffer"]


def test_a_graph_goes_through_the_second_memory() -> None:
    plan = moving_plan()
    graph = step_graph(plan)
    through = {(a, b): edge["through"] for a, b, edge in graph.edges(data=True)}
    assert through == {
        (0, 1): "arena", (0, 2): "arena", (1, 2): "second memory", (2, 3): "second memory", (3, 4): "second memory",
        (4, 5): "arena",
    }  # fmt: skip
    assert nx.is_directed_acyclic_graph(graph)


def test_names_that_xml_cannot_hold() -> None:
    step = PlanStep("forward", "a\x00<&>\ud800", "aten", {}, {}, (), (), 0)
    plan = Plan(1, 0, 0, 0, {}, (step,), ())
    assert nx.parse_graphml(graphml_text(plan)).nodes["0"]["node"] == "a\ufffd<&>\ufffd"


# -- Traces


def traced(plan: Plan) -> list[dict[str, object]]:
    return [
        {"kind": step.kind, "node": step.node, "implementation": step.implementation, "where": f" at {LINE}",
         "predicted_s": 0.5, "measured_s": 0.25}
        for step in plan.steps
    ]  # fmt: skip


def test_a_trace_is_of_the_plan(tmp_path: Path) -> None:
    plan, path = random_plan(1), tmp_path / "trace.json"
    path.write_text(json.dumps({"steps": traced(plan)}))
    count = len(plan.steps)
    assert read_trace(path, plan) == Origins((LINE,) * count, (0.5,) * count, (0.25,) * count)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"steps": [{}]}', '{"steps": 3}', '{"steps": []}'])
def test_what_is_no_trace_of_the_plan_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="trace"):
        read_trace(path, random_plan(1))


def test_a_trace_of_another_plan_says_where(tmp_path: Path) -> None:
    plan, path = random_plan(1), tmp_path / "trace.json"
    steps = traced(plan)
    steps[3]["implementation"] = "another"
    path.write_text(json.dumps({"steps": steps}))
    with pytest.raises(ConfigError, match="another step 3"):
        read_trace(path, plan)
