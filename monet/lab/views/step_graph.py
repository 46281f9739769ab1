"""The steps of a plan as a networkx graph: who makes what another step reads, and by which memory."""

from __future__ import annotations

import networkx as nx

from monet.lab.views.origins import UNKNOWN, Origins
from monet.lab.views.plain_text import plain
from monet.plans.format import READ, WAIT
from monet.plans.plan import Plan


def step_graph(plan: Plan, origins: Origins = UNKNOWN) -> nx.MultiDiGraph:
    """A node a step, by its number, and an edge for each value from the step that wrote it to one that reads it.

    Nodes have ``kind``, ``node``, ``implementation``, ``tick``, ``requested_bytes``, and ``line``, ``module``,
    ``predicted_s`` and ``measured_s`` where they are known; edges ``value``, ``bytes``, ``buffer`` and ``through``:
    ``arena`` or, from a copy to the next of the same place, ``second memory``.
    """
    graph = nx.MultiDiGraph(name=plain(str(plan.model.get("name", ""))))
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    writers: dict[int, int] = {}
    copies: dict[int, int] = {}
    for k, step in enumerate(plan.steps):
        told = {"kind": step.kind, "node": plain(step.node), "implementation": plain(step.implementation)}
        graph.add_node(k, **told, tick=step.begin, requested_bytes=sum(step.request_bytes))
        for name, text in (("line", origins.line(k)), ("module", origins.module(k))):
            if text:
                graph.nodes[k][name] = plain(text)
        for name, seconds in (("predicted_s", origins.predicted_s), ("measured_s", origins.measured_s)):
            if seconds:
                graph.nodes[k][name] = seconds[k]
        for value, number in step.reads.items():
            told_of = {"value": plain(value), "bytes": sizes[number], "buffer": number}
            graph.add_edge(writers[number], k, **told_of, through="arena")
        if step.place is not None:
            copied = (*step.reads.values(), *step.writes.values(), *(n for n in step.requests if n is not None))
            if step.kind in (READ, WAIT):
                told_of = {"value": plain(step.node), "bytes": sizes[copied[0]], "buffer": copied[0]}
                graph.add_edge(copies[step.place], k, **told_of, through="second memory")
            copies[step.place] = k
        writers.update(dict.fromkeys(step.writes.values(), k))
    return graph


def graphml_text(plan: Plan, origins: Origins = UNKNOWN) -> str:
    """The graph as GraphML."""
    return "\n".join(nx.generate_graphml(step_graph(plan, origins))) + "\n"
