// Starts the page.

const at = (id) => document.getElementById(id);
const plan = readPlan(at("plan").textContent);
const viewport = new Viewport(plan.ticks, Math.max(1, plan.arena_bytes));
const memory = new MemoryChart(at("memory"), plan, viewport);
const arena = new ArenaChart(at("arena"), plan, viewport);
const tip = new Tip(at("tip"));

function redraw() {
  memory.draw();
  arena.draw();
}

function choose(buffer) {
  arena.chosen = buffer;
  at("chosen").hidden = buffer < 0;
  if (buffer >= 0) at("chosen").replaceChildren(...aboutBuffer(plan, buffer, 40));
  arena.draw(false);
}

function goTo(buffer) {
  choose(buffer);
  viewport.frame(
    [plan.begin[buffer], plan.end[buffer]],
    [plan.offset[buffer], plan.offset[buffer] + plan.bytes[buffer]],
  );
  arena.canvas.scrollIntoView({ block: "nearest" });
}

function hover(event) {
  const buffer = arena.under(event);
  arena.canvas.style.cursor = buffer < 0 ? "" : "pointer";
  if (buffer < 0) tip.hide();
  else tip.show(aboutBuffer(plan, buffer, 6), event);
  if (buffer === arena.hovered) return;
  arena.hovered = buffer;
  arena.draw(false);
}

arena.canvas.addEventListener("pointermove", hover);
arena.canvas.addEventListener("click", (event) => arena.canvas.dataset.dragged || choose(arena.under(event)));
memory.canvas.addEventListener("pointermove", (event) => {
  const time = memory.timeAt(event.clientX), [low, high] = viewport.time;
  memory.tick = time >= low && time <= high ? fullestTick(plan, time, time + (high - low) / memory.area().width) : null;
  if (memory.tick === null) tip.hide();
  else tip.show(aboutMoment(plan, memory.tick), event);
  memory.draw();
});
for (const chart of [memory, arena]) {
  chart.canvas.addEventListener("pointerleave", () => {
    tip.hide();
    memory.tick = null;
    arena.hovered = -1;
    memory.draw();
    arena.draw(false);
  });
}

let found = [], next = 0;
at("search").addEventListener("input", () => {
  arena.found = matching(plan, at("search").value);
  found = arena.found ? [...plan.order].filter((buffer) => arena.found[buffer]) : [];
  next = 0;
  const bytes = found.reduce((sum, buffer) => sum + plan.bytes[buffer], 0);
  at("matches").textContent = arena.found ? `${showCount(found.length)} buffers, ${showBytes(bytes)} in all` : "";
  arena.draw();
});
at("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !found.length) return;
  goTo(found[next % found.length]);
  next = (next % found.length) + 1;
});
at("in").addEventListener("click", () => viewport.zoom("time", 0.6));
at("out").addEventListener("click", () => viewport.zoom("time", 1 / 0.6));
at("all").addEventListener("click", () => viewport.reset());

at("subtitle").textContent = [plan.environment.device, plan.environment.torch && `torch ${plan.environment.torch}`, plan.overview.status?.replaceAll("_", " ")]
  .filter(Boolean).join(" · ");
showFigures(plan, at("figures"));
showLegend(plan, at("legend"));
showTables(plan, at("tables"), goTo);
viewport.onChange(redraw);
new ResizeObserver(redraw).observe(at("arena"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
redraw();
window.monet = { plan, viewport, memory, arena, redraw };
