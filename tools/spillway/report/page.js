// Draws the report from the JSON beside it. Nothing is loaded; every figure comes from there.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const trace = data.trace;
const steps = data.steps;  // those that are drawn
const figures = data.figures;  // of all steps; null where there is none

// --- Words and numbers ---

// Of each cause: its colour, what was waited for, why, and what helps.
const CAUSES = {
  'bytes on NVMe': ['--nvme', 'bytes still on NVMe', 'The tile was being read.', 'More pinned memory keeps more of them; a faster or a second drive brings them sooner.'],
  'copy in flight': ['--copy', 'copies in flight', 'The tile was on its way between pinned memory and the device.', 'More device memory helps.'],
  'first touch': ['--zeros', 'new room', 'The tile was never written: its room was being filled with zeros.', 'Only where a tensor is used for the first time.'],
  'write-back': ['--writeback', 'write-back', 'What was in the tile’s room had to be written to NVMe first.', 'More pinned memory helps, or a drive that writes faster.'],
  'copy out': ['--copyout', 'copies out of the device', 'What was in the tile’s room had to be copied to pinned memory first.', 'More device memory helps.'],
  'no room': ['--noroom', 'room', 'What was in the tile’s room was leased or just coming in.', 'A larger budget for that tier helps.'],
  'leased': ['--leased', 'other leases to end', 'Another lease on the tile had to end.', 'A matter of the order in which leases are taken.'],
};
// A trace may name a cause that this page does not know.
const causeOf = name => Object.hasOwn(CAUSES, name) ? CAUSES[name] : ['--rest', name, '', ''];
const LINKS = {
  nvme_read: ['NVMe → pinned', '--nvme-read'], nvme_write: ['pinned → NVMe', '--nvme-write'],
  device_read: ['pinned → device', '--device-read'], device_write: ['device → pinned', '--device-write'],
};
const TIERS = { device: ['Device', '--device-read'], pinned: ['Pinned memory', '--nvme-read'], nvme: ['NVMe', '--nvme-write'] };

const sum = values => values.reduce((a, b) => a + b, 0);
const digits = v => v === 0 ? '0' : Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1) : v.toPrecision(3);
const bytes = v => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (v >= 1024 && unit < 4) { v /= 1024; unit++; }
  return (unit === 0 ? v.toFixed(0) : digits(v)) + ' ' + units[unit];
};
const rate = v => !Number.isFinite(v) ? '–' : v < 1e9 ? digits(v / 1e6) + ' MB/s' : digits(v / 1e9) + ' GB/s';
const time = us => !Number.isFinite(us) ? '–' : us === 0 ? '0 s' : us < 1e3 ? digits(us) + ' µs' : us < 1e6 ? digits(us / 1e3) + ' ms' : digits(us / 1e6) + ' s';
const seconds = s => s === null ? '–' : time(s * 1e6);
const percent = v => !Number.isFinite(v) ? '–' : v > 0 && v < 0.001 ? '<0.1 %' : (100 * v).toFixed(v < 0.1 ? 1 : 0) + ' %';
const plain = v => v === null || !Number.isFinite(v) ? '–' : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(2) : digits(v);
// A loss as the lines of a run show it.
const lossText = v => v === null || !Number.isFinite(v) ? '–' : Math.abs(v) >= 1e5 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(3) : v.toFixed(4);
// A label of an axis whose labels are `step` apart: with as many decimals as tell them apart.
const tickText = (v, step) => {
  const decimals = -Math.floor(Math.log10(step) + 1e-9);
  if (v === 0 || (Math.abs(v) < 1e5 && decimals < 8)) return v.toFixed(Math.max(0, Math.min(decimals, 8)));
  return v.toExponential(Math.max(0, Math.min(20, Math.floor(Math.log10(Math.abs(v))) + decimals)));
};
const count = v => v.toLocaleString('en-US');
const color = name => name.startsWith('--') ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;

// --- Elements ---

function add(parent, tag, attributes = {}, text) {
  const svg = parent.namespaceURI === 'http://www.w3.org/2000/svg' || tag === 'svg';
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
const section = id => document.getElementById(id);
function heading(parent, title, note) {
  add(parent, 'h2', {}, title);
  if (note) add(parent, 'p', { class: 'note' }, note);
}
function key(parent, entries) {
  const list = add(parent, 'div', { class: 'key' });
  for (const [name, paint] of entries) {
    const item = add(list, 'span');
    add(item, 'i', { style: `background:var(${paint})` });
    item.append(name);
  }
}
const tip = section('tip');
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 14, innerWidth - box.width - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 16, innerHeight - box.height - 8) + 'px';
}
const hideTip = () => { tip.hidden = true; };

// --- Charts ---

// 1, 2 or 5 times a power of ten, for some `n` steps up to `span`.
function niceStep(span, n, base = 10) {
  const raw = span / n;
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  for (const factor of base === 2 ? [1, 2] : [1, 2, 5, 10]) if (raw <= factor * power) return factor * power;
  return base * power;
}

// Axes with a plot inside; returns what a chart needs to draw into it. x is from x0 to x1.
function plot(parent, { width, height, x0, x1, y0, y1, yFormat, yTick, xFormat, binary }) {
  const left = 66, right = 12, top = 8, bottom = 24;
  const svg = add(parent, 'svg', { viewBox: `0 0 ${width} ${height}`, role: 'img' });
  if (!(y1 > y0)) y1 = y0 + 1;
  const x = v => left + (v - x0) / (x1 - x0 || 1) * (width - left - right);
  const y = v => height - bottom - (v - y0) / (y1 - y0) * (height - top - bottom);
  const ySteps = niceStep(y1 - y0, 4, binary ? 2 : 10);
  for (let v = Math.ceil(y0 / ySteps) * ySteps; v <= y1 + ySteps * 1e-6; v += ySteps) {
    add(svg, 'line', { class: 'grid', x1: left, x2: width - right, y1: y(v), y2: y(v) });
    add(svg, 'text', { x: left - 7, y: y(v) + 4, 'text-anchor': 'end' }, (yTick || yFormat)(Math.abs(v) < ySteps / 1e6 ? 0 : v, ySteps));
  }
  const xSteps = niceStep(x1 - x0 || 1, Math.max(3, width / 130));
  for (let v = Math.ceil(x0 / xSteps) * xSteps; v <= x1 + xSteps * 1e-6; v += xSteps) {
    add(svg, 'text', { x: x(v), y: height - 6, 'text-anchor': 'middle' }, xFormat(v));
  }
  const valueAt = event => {
    const box = svg.getBoundingClientRect();
    return x0 + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (x1 - x0);
  };
  return { svg, x, y, valueAt, left, right, bottom, top, width, height };
}
const stepLabel = v => Number.isInteger(v) ? String(v) : '';

function lineChart(parent, { series, yFormat, yTick, fromZero, label, width = 530 }) {
  const points = series.flatMap(s => s.points).filter(p => Number.isFinite(p[1]));
  if (points.length === 0) return;
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
  const low = fromZero ? 0 : Math.min(...ys), high = Math.max(...ys);
  const space = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  const at = plot(parent, { width, height: 210, x0: Math.min(...xs), x1: Math.max(...xs), y0: fromZero ? 0 : low - space, y1: high + space, yFormat, yTick, xFormat: stepLabel });
  for (const s of series) {
    let path = '', pen = 'M';
    for (const [px, py] of s.points) {
      if (!Number.isFinite(py)) { pen = 'M'; continue; }
      path += `${pen}${at.x(px).toFixed(1)} ${at.y(py).toFixed(1)}`;
      pen = 'L';
    }
    add(at.svg, 'path', { class: 'curve', d: path, style: `stroke:var(${s.color})` + (s.thin ? ';stroke-width:1;opacity:.35' : '') });
    if (s.points.length <= 40 && !s.thin) {
      for (const [px, py] of s.points) if (Number.isFinite(py)) add(at.svg, 'circle', { cx: at.x(px), cy: at.y(py), r: 2.6, style: `fill:var(${s.color})` });
    }
  }
  at.svg.addEventListener('mousemove', event => {
    const want = at.valueAt(event);
    const lines = series.filter(s => s.name).map(s => {
      const near = s.points.reduce((a, b) => Math.abs(b[0] - want) < Math.abs(a[0] - want) ? b : a);
      return [near[0], `${s.name} ${yFormat(near[1])}`];
    });
    showTip(event, `${label} ${lines[0][0]}\n` + lines.map(l => l[1]).join('\n'));
  });
  at.svg.addEventListener('mouseleave', hideTip);
}

// A bar for each x, of stacked parts; `line` is drawn over them.
function stackedBars(parent, { xs, parts, yFormat, line, binary, label, height = 200, width = 1080, note }) {
  const totals = xs.map((_, i) => sum(parts.map(p => p.values[i])));
  const tops = line ? totals.concat(line.values.filter(Number.isFinite)) : totals;
  const first = xs[0], last = xs[xs.length - 1];
  const pitch = xs.length > 1 ? (last - first) / (xs.length - 1) : 1;
  const at = plot(parent, { width, height, x0: first - pitch / 2, x1: last + pitch / 2, y0: 0, y1: Math.max(...tops, binary ? 1 : 1e-9) * 1.04, yFormat, xFormat: stepLabel, binary });
  const slot = (width - at.left - at.right) / xs.length;
  const wide = Math.min(slot * 0.78, 60);
  xs.forEach((_, i) => {
    const centre = at.x(xs[i]);  // steps that are drawn besides every n-th are closer together
    let from = 0;
    for (const part of parts) {
      const value = part.values[i];
      if (!(value > 0)) continue;
      add(at.svg, 'rect', { x: centre - wide / 2, width: Math.max(wide, 0.6), y: at.y(from + value), height: Math.max(0, at.y(from) - at.y(from + value)), style: `fill:var(${part.color})` });
      from += value;
    }
    if (line && Number.isFinite(line.values[i])) {
      add(at.svg, 'line', { class: 'budget', x1: centre - slot / 2, x2: centre + slot / 2, y1: at.y(line.values[i]), y2: at.y(line.values[i]) });
    }
  });
  at.svg.addEventListener('mousemove', event => {
    const want = at.valueAt(event);
    const i = xs.reduce((best, v, j) => Math.abs(v - want) < Math.abs(xs[best] - want) ? j : best, 0);
    let text = `${label} ${xs[i]}: ${yFormat(totals[i])}`;
    for (const part of parts) if (part.values[i] > 0) text += `\n${part.name} ${yFormat(part.values[i])}`;
    if (line && Number.isFinite(line.values[i])) text += `\n${line.name} ${yFormat(line.values[i])}`;
    if (note) text += note(i);
    showTip(event, text);
  });
  at.svg.addEventListener('mouseleave', hideTip);
}

// --- The parts of the page ---

const stalledCauses = trace ? [...new Set([...Object.keys(CAUSES), ...Object.keys(trace.all.stall_us)])].filter(cause => trace.all.stall_us[cause] > 0) : [];
const traced = trace ? trace.steps : [];
const recordedUs = trace ? trace.all.end_us - trace.all.begin_us : 0;
const tracedUs = sum(traced.map(s => s.end_us - s.begin_us));

function about() {
  const parts = [data.sources.join(' and ')];
  if (steps.length) parts.push(`steps ${steps[0].step} to ${steps[steps.length - 1].step}`);
  if (steps.length < data.steps_in_all) parts.push(`${steps.length} of ${count(data.steps_in_all)} steps are drawn`);
  if (trace && !trace.dropped_events) parts.push(`${time(recordedUs)} recorded`);
  if (trace && trace.dropped_events) parts.push(`the last ${time(recordedUs)} recorded: ${count(trace.dropped_events)} older events were dropped`);
  parts.push(...data.notes, `Spillway ${data.spillway}`);
  section('about').textContent = parts.join(' · ');
}

function headline() {
  const out = [];
  if (steps.length) {
    out.push(`A step took ${seconds(figures.seconds)} at the median: ${plain(figures.tokens_per_s)} tokens/s.`);
  }
  const total = trace ? trace.in_steps : { us: 0 };
  if (total.us > 0) {
    const stalls = stalledCauses.map(cause => [cause, total.stall_us[cause] || 0]).sort((a, b) => b[1] - a[1]);
    const stalled = sum(stalls.map(s => s[1]));
    out.push(`Of the steps’ time, ${percent(total.compute_us / total.us)} was compute and ${percent(stalled / total.us)} waiting` +
      (stalled > 0 ? `, ${percent(stalls[0][1] / stalled)} of that for ${causeOf(stalls[0][0])[1]}.` : '.'));
    const busiest = Object.keys(LINKS).map(link => [link, total.busy_us[link] || 0]).sort((a, b) => b[1] - a[1])[0];
    if (busiest[1] > 0) out.push(`The busiest link was ${LINKS[busiest[0]][0]}, in use ${percent(busiest[1] / total.us)} of the time.`);
  } else if (steps.length) {
    const why = !trace ? 'A trace (train --trace) says for what.' : trace.dropped_events ? 'The trace holds no whole step: it keeps the newest events.' : 'The trace holds no whole step.';
    out.push(`Callers waited ${percent(figures.share_waiting)} of the time. ${why}`);
  }
  if (figures.byte_ratio !== null) out.push(`NVMe traffic was ${figures.byte_ratio.toFixed(3)} times the least that is possible within these budgets.`);
  if (figures.later_time_ratio !== null && figures.later_alone_ratio !== null) {
    out.push(`From the third step on, a step took ${figures.later_time_ratio.toFixed(2)} times the least that was possible at the rates of this run, and ${figures.later_alone_ratio.toFixed(2)} times the larger of its computing and its transfers alone.`);
  }
  add(section('headline'), 'span', {}, out.join(' '));
}

function cards() {
  const parent = section('cards');
  const card = (value, what) => {
    const box = add(parent, 'div', { class: 'card' });
    add(box, 'b', {}, value);
    add(box, 'span', {}, what);
  };
  if (!steps.length) return;
  card(plain(figures.tokens_per_s), 'tokens/s, median');
  card(seconds(figures.seconds), 'a step, median');
  card(`${lossText(figures.first_loss)} → ${lossText(figures.last_loss)}`, 'loss, first → last step');
  if (figures.last_eval_loss !== null) card(lossText(figures.last_eval_loss), 'validation loss');
  card(percent(figures.share_waiting), 'of the time waiting');
  card(bytes(figures.nvme_bytes), 'over NVMe a step');
  if (figures.time_ratio !== null) card(figures.time_ratio.toFixed(2) + ' ×', 'of the time bound');
  if (figures.byte_ratio !== null) card(figures.byte_ratio.toFixed(3) + ' ×', 'of the bytes bound');
  if (figures.skipped) card(count(figures.skipped), 'steps skipped (overflow)');
}

function learning() {
  if (!steps.length) return;
  const parent = section('learning');
  const loss = add(parent, 'div');
  heading(loss, 'Loss');
  const series = [{ name: 'loss', color: '--compute', points: steps.map(s => [s.step, s.loss ?? NaN]) }];
  const evaluated = steps.filter(s => Number.isFinite(s.eval_loss));
  if (evaluated.length) series.push({ name: 'validation loss', color: '--nvme-write', points: evaluated.map(s => [s.step, s.eval_loss]) });
  key(loss, series.map(s => [s.name, s.color]));
  lineChart(loss, { series, yFormat: lossText, yTick: tickText, label: 'step' });
  const speed = add(parent, 'div');
  heading(speed, 'Tokens per second');
  key(speed, [['tokens/s', '--nvme-read']]);
  lineChart(speed, { series: [{ name: 'tokens/s', color: '--nvme-read', points: steps.map(s => [s.step, s.tokens_per_s ?? NaN]) }], yFormat: plain, fromZero: true, label: 'step' });
}

function timeAndBytes() {
  if (!steps.length) return;
  const parent = section('time');
  heading(parent, 'Where a step’s time went');
  const bound = values => values.some(s => s.time_bound_s > 0) ? { name: 'time bound', values: values.map(s => s.time_bound_s * 1e6) } : undefined;
  const boundKey = line => line ? [['least possible (time_bound_s)', '--bound']] : [];
  if (traced.length) {
    const parts = [{ name: 'compute', color: '--compute', values: traced.map(s => s.compute_us) }];
    for (const cause of stalledCauses) parts.push({ name: 'waiting: ' + cause, color: causeOf(cause)[0], values: traced.map(s => s.stall_us[cause] || 0) });
    const known = i => sum(parts.map(p => p.values[i]));
    const rest = traced.map((s, i) => Math.max(0, s.end_us - s.begin_us - known(i)));
    if (sum(rest) > 0.005 * tracedUs) parts.push({ name: 'neither', color: '--rest', values: rest });
    const logged = new Map(steps.map(s => [s.step, s]));
    const line = bound(traced.map(s => logged.get(s.step) || {}));
    key(parent, parts.map(p => [p.name, p.color]).concat(boundKey(line)));
    stackedBars(parent, { xs: traced.map(s => s.step), parts, yFormat: time, label: 'step', line });
  } else {
    const parts = [{ name: 'not waiting', color: '--compute', values: steps.map(s => (s.seconds - s.stall_s) * 1e6) }, { name: 'waiting', color: '--nvme', values: steps.map(s => s.stall_s * 1e6) }];
    const line = bound(steps);
    key(parent, parts.map(p => [p.name, p.color]).concat(boundKey(line)));
    stackedBars(parent, { xs: steps.map(s => s.step), parts, yFormat: time, label: 'step', line });
  }
  const pair = add(parent, 'div', { class: 'pair' });
  const moved = (title, tier, names, line) => {
    const box = add(pair, 'div');
    heading(box, title);
    const parts = [{ name: names[0], color: tier === 'nvme' ? '--nvme-read' : '--device-read', values: steps.map(s => s.read_bytes[tier]) },
      { name: names[1], color: tier === 'nvme' ? '--nvme-write' : '--device-write', values: steps.map(s => s.written_bytes[tier]) }];
    key(box, parts.map(p => [p.name, p.color]).concat(line ? [['least possible (nvme_bytes_bound)', '--bound']] : []));
    stackedBars(box, { xs: steps.map(s => s.step), parts, yFormat: bytes, binary: true, label: 'step', width: 530, line });
  };
  const hasBound = steps.some(s => s.nvme_bytes_bound > 0);
  moved('Bytes over NVMe a step', 'nvme', [LINKS.nvme_read[0], LINKS.nvme_write[0]], hasBound ? { name: 'nvme_bytes_bound', values: steps.map(s => s.nvme_bytes_bound) } : undefined);
  moved('Bytes to and from the device a step', 'pinned', [LINKS.device_read[0], LINKS.device_write[0]]);
}

function stalls() {
  if (!trace) return;
  const parent = section('stalls');
  const causes = stalledCauses.map(cause => [cause, trace.all.stall_us[cause]]).sort((a, b) => b[1] - a[1]);
  heading(parent, 'Why callers waited', causes.length ? 'Over all that was recorded, loading included. One wait may have several causes, one after the other.' : 'They never did.');
  if (!causes.length) return;
  const all = sum(causes.map(c => c[1]));
  const table = add(parent, 'table');
  const head = add(add(table, 'thead'), 'tr');
  for (const [text, style] of [['cause', ''], ['', ''], ['time', 'n'], ['of waiting', 'n'], ['times', 'n']]) add(head, 'th', { class: style }, text);
  const body = add(table, 'tbody');
  for (const [cause, us] of causes) {
    const row = add(body, 'tr');
    const name = add(row, 'td');
    name.append(cause[0].toUpperCase() + cause.slice(1) + ' ');
    add(name, 'small', {}, `${causeOf(cause)[2]} ${causeOf(cause)[3]}`);
    add(add(row, 'td', { style: 'width:22%' }), 'span', { class: 'bar', style: `width:${100 * us / causes[0][1]}%;background:var(${causeOf(cause)[0]})` });
    add(row, 'td', { class: 'n' }, time(us));
    add(row, 'td', { class: 'n' }, percent(us / all));
    add(row, 'td', { class: 'n' }, count(trace.all.stalls[cause]));
  }
  heading(parent, 'What was waited for longest');
  const tiles = add(parent, 'table');
  const top = add(add(tiles, 'thead'), 'tr');
  for (const [text, style] of [['tile', ''], ['mostly', ''], ['time', 'n'], ['times', 'n']]) add(top, 'th', { class: style }, text);
  const rows = add(tiles, 'tbody');
  for (const tile of trace.tiles) {
    const row = add(rows, 'tr');
    add(row, 'td', {}, tile.tile);
    add(row, 'td', {}, tile.cause);
    add(row, 'td', { class: 'n' }, time(tile.us));
    add(row, 'td', { class: 'n' }, count(tile.count));
  }
}

function tiers() {
  if (!trace) return;
  const parent = section('tiers');
  heading(parent, 'How full the tiers were', 'Over all that was recorded. The dashed line is the budget, where there is one.');
  for (const [tier, [name, paint]] of Object.entries(TIERS)) {
    const held = trace.held[tier];
    if (!held.length) continue;
    const budget = trace.budget_bytes[tier];
    const most = Math.max(...held.map(h => h[1]));
    add(parent, 'p', { class: 'note' }, `${name}: ${bytes(most)} at the most` + (budget === null ? ', no budget' : ` of ${bytes(budget)}`));
    const at = plot(parent, { width: 1080, height: 130, x0: trace.all.begin_us, x1: trace.all.end_us, y0: 0, y1: 1.06 * Math.max(most, budget === null || budget > 20 * most ? 0 : budget), yFormat: bytes, xFormat: v => time(v), binary: true });
    let path = `M${at.x(held[0][0])} ${at.y(0)}`, before = 0;
    for (const [when, value] of held) {
      path += `L${at.x(when).toFixed(1)} ${at.y(before).toFixed(1)}L${at.x(when).toFixed(1)} ${at.y(value).toFixed(1)}`;
      before = value;
    }
    path += `L${at.x(trace.all.end_us)} ${at.y(before)}L${at.x(trace.all.end_us)} ${at.y(0)}Z`;
    add(at.svg, 'path', { d: path, style: `fill:var(${paint});opacity:.55` });
    if (budget !== null && budget <= 20 * most) add(at.svg, 'line', { class: 'budget', x1: at.left, x2: 1080 - at.right, y1: at.y(budget), y2: at.y(budget) });
  }
}

function links() {
  if (!trace) return;
  const parent = section('links');
  heading(parent, 'Links', 'Over all that was recorded. “In use” is time with at least one transfer under way; the rate is over that time.');
  const table = add(parent, 'table');
  const head = add(add(table, 'thead'), 'tr');
  for (const [text, style] of [['link', ''], ['bytes', 'n'], ['transfers', 'n'], ['in use', 'n'], ['rate while in use', 'n'], ['why', '']]) add(head, 'th', { class: style }, text);
  const body = add(table, 'tbody');
  for (const [link, [name]] of Object.entries(LINKS)) {
    const figures = trace.all.links[link];
    if (!figures) continue;
    const row = add(body, 'tr');
    add(row, 'td', {}, name);
    add(row, 'td', { class: 'n' }, bytes(figures.bytes));
    add(row, 'td', { class: 'n' }, count(figures.moves));
    add(row, 'td', { class: 'n' }, percent(figures.busy_us / recordedUs));
    add(row, 'td', { class: 'n' }, rate(figures.bytes / figures.busy_us * 1e6));
    const why = Object.entries(figures.why).sort((a, b) => b[1] - a[1]).map(([reason, part]) => `${reason} ${percent(part / figures.bytes)}`);
    add(add(row, 'td'), 'small', {}, why.join(', '));
  }
}

// --- One step, closely ---

const KIND = Object.fromEntries((trace ? trace.kinds : []).map((name, i) => [name, i]));

// The rows of a window's picture, from top to bottom, each with the spans that it shows.
function rowsOf(shown) {
  const rows = [];
  const of = kinds => shown.spans.filter(s => kinds.includes(s[0]));
  const threads = spans => [...new Set(spans.map(s => s[1]))].sort((a, b) => a - b);
  rows.push({ name: 'step', height: 18, spans: of([KIND.step, KIND.evaluation, KIND.commit]), paint: s => s[0] === KIND.step ? '--step' : s[0] === KIND.commit ? '--commit' : '--evaluation', labels: true });
  const callers = spans => threads(spans).length;
  for (const kind of ['compute', 'stall']) {
    const spans = of([KIND[kind]]);
    threads(spans).forEach((thread, i) => {
      const title = kind === 'compute' ? 'compute' : 'waiting';
      rows.push({ name: callers(spans) > 1 ? `${title} ${i}` : title, height: 26, spans: spans.filter(s => s[1] === thread), labels: kind === 'compute',
        paint: kind === 'stall' ? s => causeOf(trace.names[s[5]])[0] : (s, j) => j % 2 ? '--compute2' : '--compute' });
    });
  }
  for (const [link, [name, paint]] of Object.entries(LINKS)) {
    const spans = of([KIND[link]]);
    if (!spans.length) continue;
    const lanes = Math.max(...spans.map(s => s[1]));
    rows.push({ name, height: Math.max(16, Math.min(72, 5 * lanes)), spans, lanes, paint: () => paint });
  }
  rows.push({ name: 'mover', height: 14, spans: of([KIND.mover]), paint: () => '--mover' });
  for (const [tier, [name, paint]] of Object.entries(TIERS)) {
    if (shown.held[tier].length) rows.push({ name: tier + ' held', height: 40, spans: [], held: shown.held[tier], budget: trace.budget_bytes[tier], tier, paint: () => paint });
  }
  return rows;
}

function describe(span) {
  const names = trace.names, kind = trace.kinds[span[0]];
  const length = time(span[3] / 10);
  if (kind === 'stall') {
    const other = names[span[6]];
    return `waiting ${length} for ${names[span[4]]}\n${names[span[5]]}: ${causeOf(names[span[5]])[2]}` + (other ? `\nin the way: ${other}` : '');
  }
  if (kind === 'compute') return `compute ${length}\nafter leasing ${names[span[4]]}`;
  if (LINKS[kind]) return `${LINKS[kind][0]}: ${names[span[4]]}\n${bytes(span[6])} in ${length} (${rate(span[6] / span[3] * 1e7)})\nwhy: ${names[span[5]]}`;
  if (kind === 'mover') return `mover at work ${length}`;
  return `${names[span[4]]} ${length}`;
}

function closely() {
  if (!trace || !trace.windows.length) return;
  const parent = section('closely');
  heading(parent, 'A step, closely', 'Drag to zoom in, double-click to see all, point for details.' +
    (trace.windows.length < trace.windows_in_all ? ` The newest steps and the longest are here, ${trace.windows.length} of ${count(trace.windows_in_all)}; the trace opens in ui.perfetto.dev with all.` : ''));
  key(parent, [['compute', '--compute'], ...stalledCauses.map(cause => ['waiting: ' + cause, causeOf(cause)[0]])]);
  const controls = add(parent, 'div', { class: 'controls' });
  const choice = add(controls, 'select', { 'aria-label': 'step' });
  trace.windows.forEach((w, i) => add(choice, 'option', { value: i }, `${w.title}, ${time(w.end_us - w.begin_us)}`));
  const button = (text, act) => add(controls, 'button', {}, text).addEventListener('click', act);
  const cut = add(parent, 'p', { class: 'note' });
  const canvas = add(parent, 'canvas', { tabindex: 0 });
  const left = 118, gap = 5, axis = 20;
  let shown, rows, from, to, drag = null;

  const open = index => {
    shown = trace.windows[index];
    rows = rowsOf(shown);
    cut.hidden = shown.spans_in_all <= shown.spans.length;
    cut.textContent = `${count(shown.spans.length)} of ${count(shown.spans_in_all)} events drawn`;
    from = 0;
    to = shown.end_us - shown.begin_us;
    draw();
  };
  const x = (us, width) => left + (us - from) / (to - from) * (width - left);
  const usAt = event => {
    const box = canvas.getBoundingClientRect();
    return from + (event.clientX - box.left - left) / (box.width - left) * (to - from);
  };

  function draw() {
    const width = canvas.clientWidth, height = axis + sum(rows.map(r => r.height + gap));
    const scale = devicePixelRatio || 1;
    canvas.style.height = height + 'px';
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    const paints = new Map();
    const paint = name => paints.get(name) || paints.set(name, color(name)).get(name);
    pen.font = '11px system-ui, "DejaVu Sans", sans-serif';
    pen.textBaseline = 'middle';
    const tick = niceStep(to - from, Math.max(3, width / 140));
    for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
      pen.fillStyle = paint('--line');
      pen.fillRect(x(at, width), axis - 4, 1, height);
      pen.fillStyle = paint('--soft');
      pen.fillText(time(at), x(at, width) + 3, axis / 2 - 2);
    }
    let y = axis, drawn = 0;
    for (const row of rows) {
      row.y = y;
      pen.fillStyle = paint('--soft');
      pen.textAlign = 'right';
      pen.fillText(row.name, left - 8, y + row.height / 2);
      pen.textAlign = 'left';
      pen.save();
      pen.beginPath();
      pen.rect(left, 0, width - left, height);
      pen.clip();
      if (row.held) drawHeld(pen, row, width, paint);
      const lane = row.lanes ? row.height / row.lanes : row.height;
      row.spans.forEach((span, i) => {
        const begin = span[2] / 10, end = begin + span[3] / 10;
        if (end < from || begin > to) return;
        const x0 = x(begin, width), x1 = x(end, width);
        const inner = span[0] === KIND.commit && trace.names[span[4]] !== 'commit' ? 4 : 0;
        pen.fillStyle = paint(row.paint(span, i));
        pen.globalAlpha = inner ? 0.55 : 1;
        pen.fillRect(x0, y + inner + (row.lanes ? (span[1] - 1) * lane : 0), Math.max(0.7, x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0)), lane - 2 * inner - (lane > 3 ? 0.8 : 0));
        pen.globalAlpha = 1;
        drawn++;
        const text = trace.names[span[4]];
        if (!row.labels || inner || x1 - x0 < 46) return;
        pen.fillStyle = '#fff';
        const room = Math.floor((Math.min(x1, width) - Math.max(x0, left) - 8) / 6.2);
        if (room > 3) pen.fillText(text.length > room ? text.slice(0, room - 1) + '…' : text, Math.max(x0, left) + 4, y + row.height / 2 + 0.5);
      });
      pen.restore();
      y += row.height + gap;
    }
    if (drag) {
      pen.fillStyle = paint('--compute');
      pen.globalAlpha = 0.18;
      pen.fillRect(x(Math.min(drag.a, drag.b), width), axis, Math.abs(x(drag.b, width) - x(drag.a, width)), height);
      pen.globalAlpha = 1;
    }
    canvas.dataset.spans = drawn;
  }

  function drawHeld(pen, row, width, paint) {
    const most = Math.max(...row.held.map(h => h[1]), row.budget !== null && row.budget <= 20 * Math.max(...row.held.map(h => h[1])) ? row.budget : 0) || 1;
    const top = v => row.y + row.height - v / most * (row.height - 2);
    pen.fillStyle = paint(row.paint());
    pen.globalAlpha = 0.55;
    pen.beginPath();
    pen.moveTo(x(row.held[0][0] - shown.begin_us, width), top(0));
    row.held.forEach(([at, value], i) => {
      const end = i + 1 < row.held.length ? row.held[i + 1][0] : shown.end_us;
      pen.lineTo(x(at - shown.begin_us, width), top(value));
      pen.lineTo(x(end - shown.begin_us, width), top(value));
    });
    pen.lineTo(x(shown.end_us - shown.begin_us, width), top(0));
    pen.fill();
    pen.globalAlpha = 1;
    if (row.budget === null || row.budget > most) return;
    pen.strokeStyle = paint('--bound');
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(left, top(row.budget));
    pen.lineTo(width, top(row.budget));
    pen.stroke();
    pen.setLineDash([]);
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const y = event.clientY - box.top, at = usAt(event), slack = (to - from) / (box.width - left) * 1.5;
    const row = rows.find(r => y >= r.y && y < r.y + r.height);
    if (!row || at < from) return null;
    if (row.held) {
      const level = row.held.filter(h => h[0] - shown.begin_us <= at).pop();
      return level ? `${row.name}: ${bytes(level[1])}` + (row.budget === null ? '' : ` of ${bytes(row.budget)}`) : null;
    }
    const lane = row.lanes ? Math.floor((y - row.y) / (row.height / row.lanes)) + 1 : 0;
    let best = null, distance = slack;
    for (const span of row.spans) {
      if (lane && span[1] !== lane) continue;
      const begin = span[2] / 10, end = begin + span[3] / 10;
      const away = at < begin ? begin - at : at > end ? at - end : 0;
      if (away < distance || (away === 0 && best && span[3] < best[3])) { best = span; distance = Math.max(away, 1e-9); }
    }
    return best && describe(best);
  }

  const zoom = factor => {
    const middle = (from + to) / 2, half = (to - from) / 2 * factor, whole = shown.end_us - shown.begin_us;
    from = Math.max(0, middle - half);
    to = Math.min(whole, middle + half);
    draw();
  };
  button('+', () => zoom(0.5));
  button('−', () => zoom(2));
  button('All', () => { from = 0; to = shown.end_us - shown.begin_us; draw(); });
  choice.addEventListener('change', () => open(choice.value));
  canvas.addEventListener('mousedown', event => { drag = { a: usAt(event), b: usAt(event) }; hideTip(); });
  canvas.addEventListener('mousemove', event => {
    if (drag) { drag.b = usAt(event); draw(); return; }
    const text = under(event);
    if (text) showTip(event, text); else hideTip();
  });
  addEventListener('mouseup', () => {
    if (!drag) return;
    const [a, b] = [Math.max(from, Math.min(drag.a, drag.b)), Math.min(to, Math.max(drag.a, drag.b))];
    drag = null;
    if (b - a > (to - from) / 200) [from, to] = [a, b];
    draw();
  });
  canvas.addEventListener('mouseleave', hideTip);
  canvas.addEventListener('dblclick', () => { from = 0; to = shown.end_us - shown.begin_us; draw(); });
  addEventListener('resize', draw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  // A step in the middle of what is here: neither the first, which loads, nor the last, which ends.
  choice.value = Math.floor((trace.windows.length - 1) / 2);
  open(choice.value);
}

for (const part of [about, headline, cards, learning, timeAndBytes, closely, stalls, tiers, links]) part();
document.documentElement.dataset.rendered = 'yes';
