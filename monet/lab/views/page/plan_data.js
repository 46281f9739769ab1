// The plan as typed arrays: what is in use at a tick, and which buffers are near a point.

const BLOCK = 64; // buffers: those of a block are passed over where the last of them to end has ended

/** The plan of the page's data. Buffers keep their positions; `order` has the positions by first tick. */
function readPlan(text) {
  const plan = JSON.parse(text);
  const columns = plan.buffers, words = plan.words, count = columns.begin.length;
  const begin = Float64Array.from(columns.begin), end = Float64Array.from(columns.end);
  const order = Uint32Array.from(columns.begin.keys()).sort((a, b) => begin[a] - begin[b] || a - b);
  const latest = new Float64Array(Math.ceil(count / BLOCK));
  order.forEach((buffer, at) => {
    const block = Math.floor(at / BLOCK);
    latest[block] = Math.max(latest[block], end[buffer]);
  });
  return {
    ...plan,
    count,
    begin,
    end,
    order,
    latest,
    offset: Float64Array.from(columns.offset),
    bytes: Float64Array.from(columns.bytes),
    kind: Uint8Array.from(columns.kind),
    stepBegin: Float64Array.from(plan.steps.begin),
    stepCount: plan.steps.begin.length,
    value: (buffer) => words[columns.value[buffer]],
    uses: (buffer) => columns.uses.slice(buffer ? columns.use_ends[buffer - 1] : 0, columns.use_ends[buffer]),
    step: (k) => ({
      kind: words[plan.steps.kind[k]],
      node: words[plan.steps.node[k]],
      implementation: words[plan.steps.implementation[k]],
      line: plan.steps.line.length ? words[plan.steps.line[k]] : "",
      module: plan.steps.module.length ? words[plan.steps.module[k]] : "",
      predicted_s: plan.steps.predicted_s[k],
      measured_s: plan.steps.measured_s[k],
    }),
    loads: loadsOf(plan, begin, end),
  };
}

/** Bytes in use at each tick, by kind and in all. */
function loadsOf(plan, begin, end) {
  const kinds = plan.kinds.map(() => new Float64Array(plan.ticks + 1));
  plan.buffers.bytes.forEach((bytes, buffer) => {
    const row = kinds[plan.buffers.kind[buffer]];
    row[begin[buffer]] += bytes;
    row[end[buffer]] -= bytes;
  });
  const total = new Float64Array(plan.ticks);
  for (const row of kinds) {
    for (let tick = 0, load = 0; tick < plan.ticks; tick++) {
      load += row[tick];
      row[tick] = load;
      total[tick] += load;
    }
  }
  return { kinds, total };
}

/** The tick in [from, to) at which most bytes are in use. */
function fullestTick(plan, from, to) {
  let best = Math.min(plan.ticks - 1, Math.max(0, Math.floor(from)));
  for (let tick = best + 1, stop = Math.min(plan.ticks, to); tick < stop; tick++) {
    if (plan.loads.total[tick] > plan.loads.total[best]) best = tick;
  }
  return best;
}

/** The last step that begins at `tick` or before. */
function stepAt(plan, tick) {
  let low = 0, high = plan.stepCount;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (plan.stepBegin[middle] <= tick) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

/** Calls `visit` with each buffer in use at some time in [from, to). */
function eachInUse(plan, from, to, visit) {
  for (let block = 0; block < plan.latest.length; block++) {
    const first = block * BLOCK;
    if (plan.begin[plan.order[first]] >= to) return;
    if (plan.latest[block] <= from) continue;
    for (let at = first; at < Math.min(first + BLOCK, plan.count); at++) {
      const buffer = plan.order[at];
      if (plan.end[buffer] > from && plan.begin[buffer] < to) visit(buffer);
    }
  }
}

/** The buffer at a time and an address, or the nearest within `dt` and `da` of it; -1 where there is none. */
function bufferAt(plan, time, address, dt = 0, da = 0) {
  let found = -1, nearest = Infinity;
  eachInUse(plan, time - dt, time + dt + 1e-9, (buffer) => {
    const low = plan.offset[buffer], high = low + plan.bytes[buffer];
    const x = Math.max(plan.begin[buffer] - time, time - plan.end[buffer], 0) / (dt || 1);
    const y = Math.max(low - address, address - high, 0) / (da || 1);
    if (x <= 1 && y <= 1 && x + y < nearest && (dt || x + y === 0)) {
      nearest = x + y;
      found = buffer;
    }
  });
  return found;
}

/** One for each buffer whose value, step, implementation, module or line has every word of `query` in it; null: no query. */
function matching(plan, query) {
  const wanted = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return null;
  const found = new Uint8Array(plan.count);
  for (let buffer = 0; buffer < plan.count; buffer++) {
    const maker = plan.step(plan.buffers.first[buffer]);
    const kind = plan.kinds[plan.kind[buffer]];
    const origin = `${maker.module} ${maker.line}`;
    const text = `${plan.value(buffer)} ${kind} ${maker.node} ${maker.implementation} ${origin}`.toLowerCase();
    found[buffer] = wanted.every((word) => text.includes(word)) ? 1 : 0;
  }
  return found;
}

/** Amounts as `monet` shows them. */
function showBytes(count) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (Math.abs(count) >= size) return `${(count / size).toFixed(3)} ${unit}`;
  }
  return `${count} B`;
}

function showSeconds(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(3)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(3)} ms` : `${(seconds * 1e6).toFixed(1)} µs`;
}

function showCount(count) {
  return count.toLocaleString("en");
}
