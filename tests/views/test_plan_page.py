"""The page of a plan: one file, nothing of a name is markup, and what it draws and says is the plan's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import asked, browser, screenshot
from large_plan import large_plan
from random_plans import random_plan

from monet.lab.views.contents import kinds, peak
from monet.lab.views.origins import Origins
from monet.lab.views.page.document import page, script
from monet.plans.plan import Plan
from monet.plans.verifier import verify

NASTY = "</script><script>alert(1)</script><!-- & \u2028 '\""


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="plan">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("seed", range(5))
def test_the_data_are_the_plan(seed: int) -> None:
    plan = random_plan(seed)
    data = data_of(page(plan))
    words, columns = data["words"], data["buffers"]
    for position, buffer in enumerate(plan.buffers):
        for name in ("id", "bytes", "offset", "begin", "end", "first", "last"):
            assert columns[name][position] == getattr(buffer, name)
        assert words[columns["value"][position]] == buffer.value
        begin, end = columns["use_ends"][position - 1] if position else 0, columns["use_ends"][position]
        used = [k for k, s in enumerate(plan.steps) if buffer.id in (*s.reads.values(), *s.writes.values())]
        assert columns["uses"][begin:end] == used
    assert [data["kinds"][k] for k in columns["kind"]] == list(kinds(plan))
    assert [words[k] for k in data["steps"]["node"]] == [step.node for step in plan.steps]


def test_names_are_never_markup() -> None:
    plan = random_plan(2)
    buffers = tuple(replace(buffer, value=NASTY) for buffer in plan.buffers)
    text = page(replace(plan, model={"name": NASTY}, buffers=buffers), Origins((NASTY,) * len(plan.steps)))
    elements = _Elements()
    elements.feed(text)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert "alert(1)</script>" not in text and NASTY in data_of(text)["words"]


def test_the_page_is_one_file() -> None:
    text = page(random_plan(3))
    elements = _Elements()
    elements.feed(text)
    assert not [tag for tag, attributes in elements.found if {"src", "href", "srcset"} & attributes.keys()]
    assert "default-src 'none'" in text and "@import" not in text and not re.search(r"https?://", text)


def test_a_large_plan_is_a_small_file() -> None:
    plan = large_plan(20_000)
    verify(plan)
    assert len(page(plan)) < 20_000 * 100


def test_the_script_is_right_for_node(tmp_path: Path) -> None:
    """Its syntax, and its search for a buffer by tick and address against one that looks at all."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node is installed")
    (tmp_path / "page.js").write_text(script())
    done = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = random_plan(4, steps=60)
    points = [
        (tick + 0.5, address + 0.5)
        for tick in range(0, plan.buffers[-1].end, 3)
        for address in range(0, plan.arena_bytes, 97)
    ]
    (tmp_path / "plan.json").write_text(json.dumps(data_of(page(plan))))
    source = script().partition("// Which part of the step the charts show")[0] + (
        f"const plan = readPlan(require('fs').readFileSync({json.dumps(str(tmp_path / 'plan.json'))}, 'utf8'));"
        f"const found = {json.dumps(points)}.map(([t, a]) => bufferAt(plan, t, a));"
        "console.log(JSON.stringify({found, most: Math.max(...plan.loads.total),"
        " peak: fullestTick(plan, 0, plan.ticks),"
        " steps: Array.from({length: plan.ticks}, (_, t) => stepAt(plan, t))}));"
        "})()"
    )
    (tmp_path / "asked.js").write_text(source)
    done = subprocess.run([node, tmp_path / "asked.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for (tick, address), found in zip(points, answer["found"], strict=True):
        there = [
            n
            for n, b in enumerate(plan.buffers)
            if b.begin <= tick < b.end and b.offset <= address < b.offset + b.bytes
        ]
        assert ([found] if found >= 0 else []) == there
    most = peak(plan)
    assert most is not None and (answer["most"], answer["peak"]) == (most.load_bytes, most.tick)
    begins = [step.begin for step in plan.steps]
    assert all(
        k == max(n for n, b in enumerate(begins) if b <= max(t, begins[0])) for t, k in enumerate(answer["steps"])
    )


HOVER = """
const { arena, viewport, plan } = window.monet, box = arena.canvas.getBoundingClientRect(), said = [];
for (const buffer of BUFFERS) {
  const [x, y, w, h] = arena.place(buffer);
  const at = { clientX: box.left + x + w / 2, clientY: box.top + y + h / 2, bubbles: true };
  arena.canvas.dispatchEvent(new PointerEvent("pointermove", at));
  said.push({ hovered: arena.hovered, text: document.getElementById("tip").textContent });
}
return said;
"""


def widest(plan: Plan, count: int) -> list[int]:
    """Positions of the buffers whose rectangles are the largest."""
    by_area = sorted(range(len(plan.buffers)), key=lambda n: -_area(plan, n))
    return by_area[:count]


def _area(plan: Plan, position: int) -> int:
    buffer = plan.buffers[position]
    return (buffer.end - buffer.begin) * buffer.bytes


def test_hover_shows_the_buffer(tmp_path: Path) -> None:
    browser()
    plan = random_plan(4, steps=40)
    buffers = widest(plan, 12)
    said = asked(page(plan), HOVER.replace("BUFFERS", json.dumps(buffers)), tmp_path)
    assert [answer["hovered"] for answer in said] == buffers
    for answer, position in zip(said, buffers, strict=True):
        buffer = plan.buffers[position]
        for part in (buffer.value, f"({buffer.bytes:,})", f"steps {buffer.first} to {buffer.last}"):
            assert part in answer["text"]
        maker = plan.steps[buffer.first]
        assert f"{maker.kind} {maker.node} by {maker.implementation}" in answer["text"]


def test_search_and_zoom(tmp_path: Path) -> None:
    browser()
    plan = random_plan(4, steps=40)
    answer = asked(
        page(plan),
        """
        const { arena, viewport } = window.monet, search = document.getElementById("search");
        const enter = () => search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
        search.value = "n1 temporary";
        search.dispatchEvent(new Event("input"));
        const found = Array.from(arena.found ?? []), whole = [...viewport.time];
        enter();
        const about = document.getElementById("chosen").textContent, shown = [...viewport.time], first = arena.chosen;
        document.getElementById("all").click();
        return { found, whole, shown, again: [...viewport.time], first, about };
        """,
        tmp_path,
    )
    makers = [plan.steps[buffer.first].node for buffer in plan.buffers]
    expected = [
        int("n1" in f"{buffer.value} {maker}" and kind == "temporary")
        for buffer, maker, kind in zip(plan.buffers, makers, kinds(plan), strict=True)
    ]
    assert answer["found"] == expected and any(expected)
    chosen = plan.buffers[answer["first"]]
    assert expected[answer["first"]] and chosen.value in answer["about"]
    assert answer["shown"][0] <= chosen.begin and chosen.end <= answer["shown"][1]
    assert answer["shown"] != answer["whole"] == answer["again"]


def test_many_buffers_are_drawn_at_once(tmp_path: Path) -> None:
    """A redraw of 20,000 buffers is far from what an eye would notice; the limit leaves room for a busy machine."""
    browser()
    answer = asked(
        page(large_plan(20_000)),
        """
        const { arena, redraw } = window.monet, box = arena.canvas.getBoundingClientRect();
        const seconds = (run, times) => {
          const begun = performance.now();
          for (let n = 0; n < times; n++) run(n);
          return (performance.now() - begun) / times;
        };
        const pen = () => arena.canvas.getContext("2d").getImageData(5, 5, 1, 1);
        return {
          count: window.monet.plan.count,
          redraw_ms: seconds(() => { redraw(); pen(); }, 5),
          hover_ms: seconds((n) => arena.under({ clientX: box.left + 100 + n, clientY: box.top + 100 }), 200),
        };
        """,
        tmp_path,
    )
    assert answer["count"] == 20_000
    assert answer["redraw_ms"] < 500 and answer["hover_ms"] < 5, answer


def test_the_picture_is_not_blank(tmp_path: Path) -> None:
    browser()
    pixels = pytest.importorskip("PIL.Image").open(screenshot(page(large_plan(400)), tmp_path)).convert("RGB")
    counts = sorted((count for count, _ in pixels.getcolors(1 << 24)), reverse=True)
    assert pixels.size == (1200, 1400)
    # The ground, and buffers and memory in colours of their own.
    assert len([count for count in counts if count > 2000]) >= 5 and counts[0] < 0.9 * sum(counts)


def test_wheel_and_drag(tmp_path: Path) -> None:
    """A wheel leaves what is under the pointer there; with Shift it zooms in addresses; nothing leaves the limits."""
    browser()
    plan = random_plan(4, steps=40)
    answer = asked(
        page(plan),
        """
        const { arena, viewport, plan } = window.monet, box = arena.canvas.getBoundingClientRect(), seen = [];
        const area = arena.area(), at = { clientX: box.left + area.left + area.width / 4, clientY: box.top + 100 };
        const turn = (deltaY, shiftKey = false) => {
          arena.canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY, shiftKey, cancelable: true }));
          seen.push({ time: [...viewport.time], address: [...viewport.address] });
        };
        turn(-100);
        turn(-100, true);
        const send = (name, x) => arena.canvas.dispatchEvent(
          new PointerEvent(name, { clientX: x, clientY: at.clientY, button: 0, bubbles: true }));
        send("pointerdown", at.clientX);
        send("pointermove", at.clientX - area.width / 10);
        send("pointerup", at.clientX - area.width / 10);
        seen.push({ time: [...viewport.time], address: [...viewport.address] });
        for (let n = 0; n < 30; n++) turn(100);
        turn(100, true);
        turn(100, true);
        return { seen, ticks: plan.ticks, top: plan.arena_bytes };
        """,
        tmp_path,
    )
    first, second, dragged, *_, last = answer["seen"]
    width, pixel = first["time"][1] - first["time"][0], answer["ticks"] / 1000
    assert width < answer["ticks"] and first["address"] == [0, answer["top"]]
    assert first["time"][0] + width / 4 == pytest.approx(answer["ticks"] / 4, abs=pixel)
    assert second["time"] == first["time"] and second["address"][1] - second["address"][0] < answer["top"]
    assert dragged["time"][0] - second["time"][0] == pytest.approx(width / 10, abs=pixel)
    assert last == {"time": [0, answer["ticks"]], "address": [0, answer["top"]]}


def test_tables_have_modules_and_seconds(tmp_path: Path) -> None:
    """What running again costs, by module; a row of a buffer shows it."""
    browser()
    plan = next(p for p in map(random_plan, range(50)) if sum(s.kind == "recompute" for s in p.steps) > 2)
    count = len(plan.steps)
    modules = tuple(f"{'after ' if k % 2 else ''}layer{k % 3}" for k in range(count))
    origins = Origins(("File",) * count, (0.5,) * count, (0.25,) * count, modules)
    answer = asked(
        page(plan, origins),
        """
        const sections = [...document.querySelectorAll("#tables section")].map((section) => [
          section.querySelector("h2").textContent,
          [...section.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)),
        ]);
        document.querySelector("#tables tr[tabindex]").click();
        return { sections, chosen: window.monet.arena.chosen };
        """,
        tmp_path,
    )
    tables = dict(answer["sections"])
    again = [k for k, step in enumerate(plan.steps) if step.kind == "recompute"]
    counted = {name: str(sum(k % 3 == n for k in again)) for n, name in enumerate(("layer0", "layer1", "layer2"))}
    found = {row[0]: row[1:] for row in tables["Run again, by module of the model"]}
    assert {name: row[0] for name, row in found.items()} == {name: n for name, n in counted.items() if n != "0"}
    assert all(row[1] in (f"{int(row[0]) * 0.5:.3f} s", f"{int(row[0]) * 500:.3f} ms") for row in found.values())
    most = peak(plan)
    assert most is not None and plan.buffers[answer["chosen"]].bytes == most.buffers[0].bytes
