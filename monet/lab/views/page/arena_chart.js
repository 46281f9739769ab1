// The arena: each buffer a rectangle, its life by its addresses. A picture of all of them is kept while only marks move.

const SHADES = 3; // of each kind, so that neighbours can be told apart

class ArenaChart {
  constructor(canvas, plan, viewport) {
    Object.assign(this, { canvas, plan, viewport, hovered: -1, chosen: -1, found: null, picture: null });
    this.picture = document.createElement("canvas");
    this.stale = true;
    listen(canvas, viewport, ["time", "address"], () => this.area());
  }

  area() {
    const box = this.canvas.getBoundingClientRect();
    return { left: LEFT, top: 6, width: Math.max(1, box.width - LEFT - RIGHT), height: Math.max(1, box.height - 12) };
  }

  /** Left, top, width and height of a buffer, in pixels of the canvas. */
  place(buffer) {
    const plan = this.plan, area = this.area(), [t0, t1] = this.viewport.time, [a0, a1] = this.viewport.address;
    const across = area.width / (t1 - t0), up = area.height / (a1 - a0);
    return [
      area.left + (plan.begin[buffer] - t0) * across,
      area.top + area.height - (plan.offset[buffer] + plan.bytes[buffer] - a0) * up,
      (plan.end[buffer] - plan.begin[buffer]) * across,
      plan.bytes[buffer] * up,
    ];
  }

  /** The buffer under the pointer, or within three pixels of it; -1 where there is none. */
  under(event) {
    const box = this.canvas.getBoundingClientRect(), area = this.area();
    const [t0, t1] = this.viewport.time, [a0, a1] = this.viewport.address;
    const time = t0 + ((t1 - t0) * (event.clientX - box.left - area.left)) / area.width;
    const address = a0 + (a1 - a0) * (1 - (event.clientY - box.top - area.top) / area.height);
    if (time < t0 || time > t1 || address < a0 || address > a1) return -1;
    const exact = bufferAt(this.plan, time, address);
    return exact >= 0 ? exact : bufferAt(this.plan, time, address, (3 * (t1 - t0)) / area.width, (3 * (a1 - a0)) / area.height);
  }

  /** Draws all, or where nothing has moved only the marks. */
  draw(moved = true) {
    if (moved) this.stale = true;
    const { pen, width, height } = context(this.canvas), paint = colours(), area = this.area();
    if (this.stale || this.picture.width !== this.canvas.width || this.picture.height !== this.canvas.height) this.paint(paint);
    if (this.picture.width && this.picture.height) pen.drawImage(this.picture, 0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(area.left, area.top, area.width, area.height);
    pen.clip();
    for (const [buffer, line] of [[this.chosen, 3], [this.hovered, 2]]) {
      if (buffer < 0) continue;
      const [x, y, w, h] = this.place(buffer);
      pen.strokeStyle = paint.ink;
      pen.lineWidth = line;
      pen.strokeRect(x - 1, y - 1, Math.max(2, w + 2), Math.max(2, h + 2));
    }
    pen.restore();
  }

  paint(paint) {
    const plan = this.plan, area = this.area(), [t0, t1] = this.viewport.time;
    Object.assign(this.picture, { width: this.canvas.width, height: this.canvas.height });
    const pen = this.picture.getContext("2d"), ratio = window.devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    pen.fillStyle = paint.panel;
    pen.fillRect(area.left, area.top, area.width, area.height);
    byteAxis(pen, paint, area, ...this.viewport.address);
    pen.save();
    pen.beginPath();
    pen.rect(area.left, area.top, area.width, area.height);
    pen.clip();
    const labels = [], bottom = area.top + area.height, [a0, a1] = this.viewport.address;
    const across = area.width / (t1 - t0), up = area.height / (a1 - a0);
    // By colour and shade, as to change these takes longer than to draw a rectangle.
    const groups = plan.kinds.map(() => Array.from({ length: SHADES + 1 }, () => []));
    eachInUse(plan, t0, t1, (buffer) => {
      const isFound = !this.found || this.found[buffer];
      groups[plan.kind[buffer]][isFound ? buffer % SHADES : SHADES].push(buffer);
    });
    groups.forEach((shades, kind) => {
      pen.fillStyle = paint[plan.kinds[kind]];
      shades.forEach((buffers, shade) => {
        pen.globalAlpha = shade === SHADES ? 0.13 : 1 - 0.13 * shade;
        for (const buffer of buffers) {
          const x = area.left + (plan.begin[buffer] - t0) * across, w = (plan.end[buffer] - plan.begin[buffer]) * across;
          const h = plan.bytes[buffer] * up, y = bottom - (plan.offset[buffer] - a0) * up - h;
          if (y > bottom || y + h < area.top) continue;
          const gap = w > 4 && h > 4 ? 0.5 : 0;
          pen.fillRect(x + gap, y + gap, Math.max(0.7, w - 2 * gap), Math.max(0.7, h - 2 * gap));
          const seen = Math.min(y + h, bottom) - Math.max(y, area.top);
          if (shade < SHADES && w > 60 && seen > 15) labels.push([buffer, x, y, w, h]);
        }
      });
    });
    pen.globalAlpha = 1;
    pen.fillStyle = "#fff";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    for (const [buffer, x, y, w, h] of labels) {
      const from = Math.max(x, area.left), to = Math.min(x + w, area.left + area.width);
      const middle = (Math.max(y, area.top) + Math.min(y + h, bottom)) / 2, text = plan.value(buffer);
      const fits = Math.floor(((to - from - 10) / pen.measureText(text).width) * text.length);
      if (fits > 4) pen.fillText(fits < text.length ? `${text.slice(0, fits - 1)}…` : text, from + 5, middle);
    }
    pen.restore();
    this.stale = false;
  }
}
