// What is said of one buffer, or of one moment, beside the pointer and under the charts.

/** An element; `content`: text, or elements. Text is never read as markup. */
function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  made.append(...[content].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function rowsOf(pairs) {
  return element("table", pairs.filter(([, value]) => value !== "").map(([name, value]) => element("tr", [element("td", name), element("td", value)])));
}

function stepText(plan, k) {
  const { kind, node, implementation } = plan.step(k);
  return `${showCount(k)}: ${kind} ${node} by ${implementation}`;
}

/** Value, kind, bytes, place, life, the step that makes it and how, and who uses it. `most`: how many uses to name. */
function aboutBuffer(plan, buffer, most) {
  const columns = plan.buffers, first = columns.first[buffer], last = columns.last[buffer];
  const maker = plan.step(first), uses = plan.uses(buffer).filter((k) => k !== first);
  const named = uses.slice(0, most).map((k) => stepText(plan, k)).join("; ");
  const end = columns.offset[buffer] + columns.bytes[buffer];
  return [
    element("b", plan.value(buffer)),
    rowsOf([
      ["bytes", `${showBytes(columns.bytes[buffer])} (${showCount(columns.bytes[buffer])})`],
      ["what", plan.kinds[plan.kind[buffer]] + (columns.leaves[buffer] ? ", outlives the step" : "")],
      ["made in step", stepText(plan, first)],
      ["module", maker.module],
      ["line", maker.line],
      ["takes", maker.predicted_s === undefined ? "" : `${showSeconds(maker.predicted_s)} predicted, ${showSeconds(maker.measured_s)} measured`],
      ["life", `steps ${showCount(first)} to ${showCount(last)}, ticks ${showCount(columns.begin[buffer])} to ${showCount(columns.end[buffer])}`],
      ["used in steps", uses.length > most ? `${named}; and ${uses.length - most} more` : named],
      ["addresses", `${showCount(columns.offset[buffer])} to ${showCount(end)}, buffer ${columns.id[buffer]}`],
    ]),
  ];
}

/** The step at a tick, and what is in memory then. */
function aboutMoment(plan, tick) {
  const k = stepAt(plan, tick), { module, line } = plan.step(k), held = plan.fixed_bytes + plan.loads.total[tick];
  const parts = plan.kinds.map((kind, row) => [kind, plan.loads.kinds[row][tick]]).filter(([, bytes]) => bytes > 0);
  return [
    element("b", `step ${stepText(plan, k)}`),
    rowsOf([
      ["module", module],
      ["line", line],
      ["in memory", showBytes(held)],
      ...parts.reverse().map(([kind, bytes]) => [kind, showBytes(bytes)]),
      ["fixed", showBytes(plan.fixed_bytes)],
    ]),
  ];
}

class Tip {
  constructor(box) {
    this.box = box;
  }

  show(content, event) {
    this.box.replaceChildren(...content);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect(), gap = 16;
    const left = event.clientX + gap + width > innerWidth ? event.clientX - gap - width : event.clientX + gap;
    const top = event.clientY + gap + height > innerHeight ? event.clientY - gap - height : event.clientY + gap;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}
