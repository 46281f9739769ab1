// Which part of the step the charts show: both have one range of ticks, the arena a range of addresses, too.

const LEFT = 76, RIGHT = 14; // pixels beside a chart's area

class Viewport {
  constructor(ticks, top) {
    this.limits = { time: [0, ticks], address: [0, top] };
    this.least = { time: Math.min(2, ticks), address: Math.min(64, top) };
    this.listeners = [];
    this.time = [0, ticks];
    this.address = [0, top];
  }

  /** Calls `listener` after each change, at most once a frame. */
  onChange(listener) {
    this.listeners.push(listener);
  }

  changed() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      for (const listener of this.listeners) listener();
    });
  }

  /** Shows [low, high] of `axis`, moved and cut so that it is within the limits. */
  show(axis, low, high) {
    const [first, last] = this.limits[axis];
    const width = Math.min(last - first, Math.max(this.least[axis], high - low));
    const middle = (low + high) / 2;
    const begin = Math.min(last - width, Math.max(first, middle - width / 2));
    this[axis] = [begin, begin + width];
    this.changed();
  }

  /** Makes what is shown `factor` times as long, with the point at `share` of it where it was. */
  zoom(axis, factor, share = 0.5) {
    const [low, high] = this[axis], point = low + (high - low) * share;
    const [first, last] = this.limits[axis];
    const width = Math.min(last - first, Math.max(this.least[axis], (high - low) * factor));
    this.show(axis, point - width * share, point + width * (1 - share));
  }

  /** Moves by a share of what is shown. */
  move(axis, share) {
    const [low, high] = this[axis], by = (high - low) * share;
    this.show(axis, low + by, high + by);
  }

  reset() {
    this.show("time", ...this.limits.time);
    this.show("address", ...this.limits.address);
  }

  /** A range with something around it. */
  frame(time, address) {
    const widen = ([low, high], share) => [low - (high - low) * share, high + (high - low) * share];
    this.show("time", ...widen(time, 1));
    this.show("address", ...widen(address, 2));
  }
}

/** Wheel, drag, double click and keys of a canvas. `axes`: which of them it moves; `area()`: of its drawing. */
function listen(canvas, viewport, axes, area) {
  const share = (event) => {
    const box = canvas.getBoundingClientRect(), { left, top, width, height } = area();
    return { time: (event.clientX - box.left - left) / width, address: 1 - (event.clientY - box.top - top) / height };
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const turned = event.deltaY || event.deltaX; // browsers turn Shift and wheel sideways
    const axis = event.shiftKey && axes.includes("address") ? "address" : "time";
    viewport.zoom(axis, Math.exp(Math.max(-120, Math.min(120, turned)) * 0.003), clamp(share(event)[axis], 0, 1));
  }, { passive: false });
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    last = { x: event.clientX, y: event.clientY, moved: 0 };
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!last) return;
    const dx = event.clientX - last.x, dy = event.clientY - last.y, { width, height } = area();
    last = { x: event.clientX, y: event.clientY, moved: last.moved + Math.abs(dx) + Math.abs(dy) };
    viewport.move("time", -dx / width);
    if (axes.includes("address")) viewport.move("address", dy / height);
  });
  canvas.addEventListener("pointerup", () => {
    canvas.dataset.dragged = last && last.moved > 4 ? "yes" : "";
    last = null;
  });
  canvas.addEventListener("pointercancel", () => (last = null));
  canvas.addEventListener("dblclick", () => viewport.reset());
  canvas.addEventListener("keydown", (event) => {
    const keys = {
      "+": () => viewport.zoom("time", 0.7), "=": () => viewport.zoom("time", 0.7),
      "-": () => viewport.zoom("time", 1 / 0.7), 0: () => viewport.reset(),
      ArrowLeft: () => viewport.move("time", -0.15), ArrowRight: () => viewport.move("time", 0.15),
      ArrowUp: () => viewport.move("address", 0.15), ArrowDown: () => viewport.move("address", -0.15),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

/** The canvas's context in CSS pixels, sized to its place on the page and the screen's resolution. */
function context(canvas) {
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
  return { pen, width: box.width, height: box.height };
}

/** The page's colours, which change with the system's. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${String(name)}`).trim() });
}

/** 1, 2 or 5 times a power of ten: at most `marks` of it are in `length`. */
function spacing(length, marks) {
  const least = length / marks, power = 10 ** Math.floor(Math.log10(least || 1));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least) ?? power * 10;
}

/** Marks of bytes on the left side, from `low` to `high`, in the unit of `high`. */
function byteAxis(pen, paint, area, low, high) {
  const [size, unit] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([of]) => high >= of) ?? [1, "B"];
  const apart = spacing((high - low) / size, Math.max(2, area.height / 45));
  const digits = Math.max(0, -Math.floor(Math.log10(apart) + 1e-9));
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (let mark = Math.ceil(low / size / apart) * apart; mark * size <= high * (1 + 1e-12); mark += apart) {
    const y = area.top + area.height * (1 - (mark * size - low) / (high - low));
    pen.fillStyle = paint.line;
    pen.fillRect(area.left, Math.round(y), area.width, 1);
    pen.fillStyle = paint.soft;
    pen.fillText(`${mark.toFixed(digits)} ${unit}`, area.left - 8, y);
  }
}
