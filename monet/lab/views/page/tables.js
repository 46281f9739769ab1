// The figures above the charts and the tables under them.

const MOST_ROWS = 400;

function showFigures(plan, box) {
  const of = plan.overview, share = (part, whole) => `${((100 * part) / whole).toFixed(1)}\u00a0%`;
  const eager = of.eager_peak_bytes, count = (kind) => of.steps[kind] ?? 0;
  const beside = (overhead) => {
    const percent = Math.abs(100 * overhead).toFixed(1);
    return percent === "0.0" ? "as long as eager's" : `${percent}\u00a0% ${overhead > 0 ? "longer" : "shorter"} than eager's`;
  };
  const above = plan.arena_bytes - plan.arena_bound_bytes;
  const figures = [
    ["Peak", showBytes(plan.peak_bytes), `${share(plan.peak_bytes, plan.budget_bytes)} of the budget of ${showBytes(plan.budget_bytes)}`],
    eager ? ["Eager's peak", showBytes(eager), `the plan needs ${share(plan.peak_bytes, eager)} of it`] : null,
    ["Arena", showBytes(plan.arena_bytes), above ? `${share(above, plan.arena_bound_bytes)} above the least for these buffers` : "no placement of these buffers needs less"],
    ["Fixed", showBytes(plan.fixed_bytes), "parameters, inputs, outputs and the like"],
    of.predicted_s === null ? null : ["Predicted step", showSeconds(of.predicted_s), of.overhead === null ? "" : `${beside(of.overhead)}${of.bound_s ? `; no plan is under ${showSeconds(of.bound_s)} (${of.bound_scope ?? "its problem"})` : ""}`],
    count("recompute") ? ["Run again", `${showCount(count("recompute"))} runs`, `${showCount(Object.keys(of.recomputed).length)} operators, ${showBytes(of.recomputed_bytes)}`] : ["Run again", "nothing", "every operator runs once"],
    plan.second_bytes ? ["Moved", showBytes(plan.second_bytes), `${showCount(Object.keys(of.moved).length)} values in a second memory`] : null,
    ["Steps", showCount(plan.stepCount), `${showCount(plan.count)} buffers in ${showCount(plan.ticks)} ticks`],
  ];
  box.replaceChildren(...figures.filter(Boolean).map(([name, value, note]) =>
    element("div", [element("dt", name), element("dd", [value, element("small", note)])])));
}

/** A section with a table, or nothing where there are no rows. `numbers`: which columns are to the right. A row's last
 * item, where it is a function, is what a click on it does. */
function tableSection(title, head, rows, { numbers = [], note = "", wide = false } = {}) {
  if (!rows.length) return [];
  const cell = (name) => (content, column) => element(name, content, numbers.includes(column) ? { class: "number" } : {});
  const lines = rows.slice(0, MOST_ROWS).map((row) => {
    const act = typeof row.at(-1) === "function" ? row.at(-1) : null;
    const line = element("tr", (act ? row.slice(0, -1) : row).map(cell("td")), act ? { tabindex: "0" } : {});
    if (act) {
      line.addEventListener("click", act);
      line.addEventListener("keydown", (event) => event.key === "Enter" && act());
    }
    return line;
  });
  const table = element("table", [element("thead", element("tr", head.map(cell("th")))), element("tbody", lines)]);
  const more = rows.length > MOST_ROWS ? `${showCount(rows.length - MOST_ROWS)} more are not listed. ` : "";
  const below = more + note ? [element("p", more + note, { class: "note" })] : [];
  return [element("section", [element("h2", title), element("div", table, { class: "scroll" }), ...below], wide ? { class: "wide" } : {})];
}

/** `choose`: shows a buffer in the charts. */
function showTables(plan, box, choose) {
  const of = plan.overview, descending = (pairs) => pairs.sort((a, b) => b[1] - a[1]);
  const peak = fullestTick(plan, 0, plan.ticks), there = [];
  eachInUse(plan, peak, peak + 1, (buffer) => there.push(buffer));
  there.sort((a, b) => plan.bytes[b] - plan.bytes[a]);
  const swatch = (kind) => [element("i", "", { style: `background: var(--${kind})` }), kind];
  const largest = there.slice(0, 50).map((buffer) => [
    plan.value(buffer), swatch(plan.kinds[plan.kind[buffer]]), showBytes(plan.bytes[buffer]),
    `${showCount(plan.buffers.first[buffer])} to ${showCount(plan.buffers.last[buffer])}`, () => choose(buffer),
  ]);
  const seconds = new Map(), again = new Map(), origins = new Map();
  for (let k = 0; k < plan.stepCount; k++) {
    const { kind, node, line, module, predicted_s } = plan.step(k);
    if (predicted_s !== undefined) seconds.set(kind, (seconds.get(kind) ?? 0) + predicted_s);
    if (kind !== "recompute") continue;
    again.set(node, { origin: module || line, seconds: (again.get(node)?.seconds ?? 0) + (predicted_s ?? 0) });
    const name = module.replace(/^after /, "") || line, sum = origins.get(name) ?? { runs: 0, seconds: 0 };
    if (name) origins.set(name, { runs: sum.runs + 1, seconds: sum.seconds + (predicted_s ?? 0) });
  }
  const timed = seconds.size > 0, known = origins.size > 0, origin = plan.steps.module.length ? "module" : "line";
  const only = (condition, ...cells) => (condition ? cells : []);
  box.replaceChildren(
    ...tableSection(`Largest of ${showCount(there.length)} buffers at the peak`, ["value", "what", "bytes", "steps"], largest, { numbers: [2, 3], note: `Step ${stepText(plan, stepAt(plan, peak))}, tick ${showCount(peak)}: ${showBytes(plan.loads.total[peak])} of the arena are in use.` }),
    ...tableSection("Run again", ["operator", "times", ...only(timed, "time"), ...only(known, origin)], descending(Object.entries(of.recomputed)).map(([node, times]) => [node, showCount(times), ...only(timed, showSeconds(again.get(node).seconds)), ...only(known, again.get(node).origin)]), { numbers: timed ? [1, 2] : [1] }),
    ...tableSection(`Run again, by ${origin} of the model`, [origin, "runs", ...only(timed, "time")], [...origins].sort((a, b) => b[1].seconds - a[1].seconds || b[1].runs - a[1].runs).map(([name, sum]) => [name, showCount(sum.runs), ...only(timed, showSeconds(sum.seconds))]), { numbers: [1, 2], wide: origin === "line" }),
    ...tableSection("Moved to the second memory", ["value", "bytes"], descending(Object.entries(of.moved)).map(([value, bytes]) => [value, showBytes(bytes)]), { numbers: [1] }),
    ...tableSection("Implementations", ["operator", "runs by"], Object.entries(of.implementations).map(([operator, used]) => [operator, Object.entries(used).map(([name, times]) => `${name} ${showCount(times)}`).join(", ")])),
    ...tableSection("Steps", ["kind", "number", ...only(timed, "predicted")], Object.entries(of.steps).map(([kind, number]) => [kind, showCount(number), ...only(timed, showSeconds(seconds.get(kind) ?? 0))]), { numbers: [1, 2] }),
    ...tableSection("Fixed bytes", ["part", "bytes"], descending(Object.entries(plan.fixed)).filter(([, bytes]) => bytes > 0).map(([part, bytes]) => [part.replaceAll("_", " "), showBytes(bytes)]), { numbers: [1] }),
    ...tableSection("Made for", ["what", "value"], Object.entries(plan.environment)),
  );
}

function showLegend(plan, box) {
  const used = plan.kinds.filter((_, row) => plan.kind.includes(row));
  const items = ["fixed", ...used].map((kind) => element("li", [element("i", "", { style: `background: var(--${kind})` }), kind]));
  const rule = (name, colour) => element("li", [element("i", "", { class: "rule", style: `border-color: var(--${colour})` }), name]);
  items.push(rule(`budget ${showBytes(plan.budget_bytes)}`, "ink"));
  if (plan.overview.eager_peak_bytes) items.push(rule(`eager's peak ${showBytes(plan.overview.eager_peak_bytes)}`, "eager"));
  box.replaceChildren(...items);
}
