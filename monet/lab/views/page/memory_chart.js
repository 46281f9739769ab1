// Memory along the step: fixed bytes, then each kind of buffer upon the others, under the lines of budget and eager.

const STEP_COLOURS = {
  forward: "forward", recompute: "recomputed", backward: "backward", update: "gradient",
  write: "returned", read: "returned", wait: "returned",
};
const STRIP = 9; // pixels: the kinds of the steps, under the chart

class MemoryChart {
  constructor(canvas, plan, viewport) {
    Object.assign(this, { canvas, plan, viewport, tick: null });
    this.most = 1.06 * Math.max(plan.budget_bytes, plan.peak_bytes, plan.overview.eager_peak_bytes ?? 0);
    listen(canvas, viewport, ["time"], () => this.area());
  }

  area() {
    const box = this.canvas.getBoundingClientRect();
    return { left: LEFT, top: 6, width: Math.max(1, box.width - LEFT - RIGHT), height: box.height - 6 - 38 };
  }

  timeAt(clientX) {
    const { left, width } = this.area(), [low, high] = this.viewport.time;
    return low + ((high - low) * (clientX - this.canvas.getBoundingClientRect().left - left)) / width;
  }

  draw() {
    const { pen } = context(this.canvas), paint = colours(), area = this.area(), plan = this.plan;
    const [low, high] = this.viewport.time, perPixel = (high - low) / area.width;
    const y = (bytes) => area.top + area.height * (1 - bytes / this.most);
    byteAxis(pen, paint, area, 0, this.most);
    const bottom = y(0), fixed = y(plan.fixed_bytes);
    pen.fillStyle = paint.fixed;
    pen.fillRect(area.left, fixed, area.width, bottom - fixed);
    const columns = Math.ceil(area.width), held = new Float64Array(columns).fill(plan.fixed_bytes);
    const ticks = Uint32Array.from(held, (_, x) => fullestTick(plan, low + x * perPixel, low + (x + 1) * perPixel));
    plan.kinds.forEach((kind, row) => {
      const loads = plan.loads.kinds[row];
      pen.fillStyle = paint[kind];
      for (let x = 0; x < columns; ) {
        const load = loads[ticks[x]], from = held[x], begin = x;
        // Columns of one height are one rectangle.
        while (x < columns && loads[ticks[x]] === load && held[x] === from) held[x++] += load;
        if (load) pen.fillRect(area.left + begin, y(from + load), x - begin, y(from) - y(from + load));
      }
    });
    this.rule(pen, paint, area, y(plan.budget_bytes), paint.ink, [7, 4]);
    if (plan.overview.eager_peak_bytes) this.rule(pen, paint, area, y(plan.overview.eager_peak_bytes), paint.eager, [2, 3]);
    this.steps(pen, paint, area);
    if (this.tick !== null) {
      const x = area.left + ((this.tick + 0.5 - low) / (high - low)) * area.width;
      pen.fillStyle = paint.ink;
      if (x >= area.left && x <= area.left + area.width) pen.fillRect(Math.round(x), area.top, 1, area.height + STRIP + 3);
    }
  }

  rule(pen, paint, area, y, colour, dash) {
    pen.strokeStyle = colour;
    pen.lineWidth = 1.75;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(area.left, y);
    pen.lineTo(area.left + area.width, y);
    pen.stroke();
    pen.setLineDash([]);
  }

  /** The strip of kinds, and numbers of steps under it. */
  steps(pen, paint, area) {
    const plan = this.plan, [low, high] = this.viewport.time, top = area.top + area.height + 3;
    const x = (tick) => area.left + clamp((tick - low) / (high - low), 0, 1) * area.width;
    const first = stepAt(plan, low), last = stepAt(plan, high), kinds = plan.steps.kind;
    const isRare = (kind) => kind !== "forward" && kind !== "backward";
    for (const rare of [false, true]) {
      for (let k = first; k <= last; ) {
        const number = kinds[k], kind = plan.words[number], from = x(plan.stepBegin[k]);
        while (k <= last && kinds[k] === number) k++;
        if (isRare(kind) !== rare) continue;
        pen.fillStyle = paint[STEP_COLOURS[kind]];
        pen.fillRect(from, top, Math.max(rare ? 1 : 0.5, x(k < plan.stepCount ? plan.stepBegin[k] : plan.ticks) - from), STRIP);
      }
    }
    pen.fillStyle = paint.soft;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const apart = Math.max(1, spacing(last - first + 1, Math.max(2, area.width / 90)));
    let free = -Infinity;
    for (let k = Math.ceil(first / apart) * apart; k <= last; k += apart) {
      const at = x(plan.stepBegin[k]), text = k === 0 ? "step 0" : showCount(k);
      if (plan.stepBegin[k] < low || at < free) continue;
      pen.fillRect(Math.round(at), top + STRIP, 1, 4);
      pen.fillText(text, at, top + STRIP + 6);
      free = at + pen.measureText(text).width + 30;
    }
  }
}
