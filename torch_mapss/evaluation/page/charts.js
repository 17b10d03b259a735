"use strict";
// Charts as SVG and HTML: axes, boxes of the ranking, panels over time. Positions are percentages and
// strokes are not scaled, so nothing has to be redrawn when the window changes.

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ------------------------------------------------------------------ axes

// At least three round values between two numbers, and about `count`.
function roundValues(low, high, count) {
  const values = multiplesBetween(low, high, count);
  return values.length < 3 && count < 12 ? roundValues(low, high, count + 1) : values;
}

function multiplesBetween(low, high, count) {
  const step = (high - low) / count, power = 10 ** Math.floor(Math.log10(step));
  const unit = [1, 2, 5, 10].find((factor) => factor * power >= step * 0.999) * power;
  const values = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + 1e-9 * unit; k++) values.push(k * unit);
  return values;
}

// A score without a lower end (log PM) may span decades. It is then drawn over the logarithm of its
// distance to 1.
const DECADES = 1.5;
const squeezed = (value) => -Math.log10(1 - value);

// An axis of the values of a score: its ends, labelled ticks, and where a value lies (0 to 1).
// `digits`: decimals of the score, as equal values need an axis of some length.
function valueAxis(values, { limits, digits }, tickCount = 4) {
  const numbers = values.filter(isNumber);
  let low = Math.min(...numbers), high = Math.max(...numbers);
  if (!numbers.length) [low, high] = [0, 1];
  const decades = limits[0] === null && limits[1] === 0 && squeezed(high) - squeezed(low) > DECADES;
  if (decades) {
    const ladder = [0, ...Array.from({ length: 48 }, (_, k) => -(k % 2 ? 3 : 1) * 10 ** Math.floor(k / 2))];
    const end = squeezed(low), begin = squeezed(high), margin = 0.04 * (begin - end) + 1e-6;
    const inside = ladder.filter((value) => squeezed(value) >= end - margin && squeezed(value) <= begin + margin);
    const stride = Math.max(1, Math.ceil(inside.length / (tickCount + 2)));
    const at = (value) => (squeezed(value) - end + margin) / (begin - end + 2 * margin);
    return { at, ticks: inside.filter((_, k) => k % stride === 0), decades };
  }
  const margin = Math.max(0.05 * (high - low), 10 ** (1 - digits));
  low = limits[0] === null ? low - margin : Math.max(limits[0], low - margin);
  high = limits[1] === null ? high + margin : Math.min(limits[1], high + margin);
  return { at: (value) => (value - low) / (high - low), ticks: roundValues(low, high, tickCount), decades };
}

const axisText = (axis, value) =>
  axis.decades && Math.abs(value) >= 1e4 ? value.toExponential(0).replace("e+", "e").replace("-", "−") : tickText(value);

const percent = (share) => `${(100 * share).toFixed(3)}%`;

// ------------------------------------------------------------------ boxes of the ranking

function quantile(sorted, share) {
  const place = share * (sorted.length - 1), below = Math.floor(place);
  return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

const DIAMOND = "M0-6L5 0 0 6-5 0z";
const MOST_DOTS = 200;

// One system on a horizontal axis: its mixtures as dots and box, its mean with interval.
function boxRow(values, row, axis) {
  const x = (value) => percent(axis.at(value)), sorted = [...values].sort((a, b) => a - b);
  const label = `mean ${row.mean}, ${values.length} mixtures`;
  const chart = svg("svg", { height: 26, role: "img", "aria-label": label });
  for (const tick of axis.ticks) chart.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: 26 }));
  if (sorted.length > 3) {
    const [low, middle, high] = [0.25, 0.5, 0.75].map((share) => quantile(sorted, share));
    chart.append(
      svg("line", { class: "whisker", x1: x(sorted[0]), x2: x(sorted[sorted.length - 1]), y1: 13, y2: 13 }),
      svg("rect", { class: "box", x: x(low), width: percent(axis.at(high) - axis.at(low)), y: 6, height: 14 }),
      svg("line", { class: "whisker", x1: x(middle), x2: x(middle), y1: 6, y2: 20 }),
    );
  }
  if (sorted.length <= MOST_DOTS)
    // A fixed spread, so that equal data give equal pictures.
    values.forEach((value, k) => chart.append(svg("circle", { class: "dot", cx: x(value), cy: 13 + 6 * Math.sin(2.4 * k), r: 2 })));
  if (isNumber(row.low)) chart.append(svg("line", { class: "interval", x1: x(row.low), x2: x(row.high), y1: 13, y2: 13 }));
  chart.append(svg("svg", { x: x(row.mean), y: 13, overflow: "visible" }, svg("path", { class: "mean", d: DIAMOND })));
  return chart;
}

function boxAxis(axis) {
  const chart = svg("svg", { height: 18, "aria-hidden": "true" });
  for (const tick of axis.ticks) {
    const text = svg("text", { x: percent(axis.at(tick)), y: 13, "text-anchor": "middle" });
    text.textContent = axisText(axis, tick);
    chart.append(text);
  }
  return chart;
}

// ------------------------------------------------------------------ panels over time

const COLOURS = ["var(--one)", "var(--two)"];

function panel(height, axis, caption, ...content) {
  const area = make("div", undefined, { class: "area", style: `height: ${height}px` });
  area.append(...content);
  const ticks = make("div", undefined, { class: "ticks" });
  for (const tick of axis.ticks)
    ticks.append(make("span", axisText(axis, tick), { style: `top: ${percent(1 - axis.at(tick))}` }));
  const node = make("div", undefined, { class: "panel" });
  node.append(caption, ticks, area);
  return node;
}

function spectrogramPanel(name, track, end) {
  const khz = track.rate / 2000, caption = make("div", undefined, { class: "caption" });
  caption.append(make("strong", name), ` · ${track.name}`);
  const image = make("img", undefined, { class: "picture", src: track.picture, alt: "", style: `width: ${percent(track.seconds / end)}` });
  const ticks = roundValues(0, khz, 3), node = panel(80, { at: (value) => value / khz, ticks }, caption, image);
  node.querySelector(".ticks").lastChild.append(" kHz");
  return node;
}

// A line with gaps; a value between two gaps becomes a dot.
function curvePath(curve, name, axis, end, dots) {
  const x = (k) => (1000 * (curve.first + k * curve.step) / end).toFixed(2);
  let path = "", drawing = false;
  curve[name].forEach((value, k) => {
    if (value === null) { drawing = false; return; }
    const y = (1000 * (1 - axis.at(value))).toFixed(2);
    const joined = drawing && !dots, alone = dots || (!drawing && (curve[name][k + 1] ?? null) === null);
    path += joined ? `L${x(k)} ${y}` : `M${x(k)} ${y}${alone ? "h0" : ""}`;
    drawing = true;
  });
  return path;
}

function curvePanel(names, curve, end, dots) {
  const score = SCORES[names[0]], bounded = score.limits.every(isNumber);
  const values = bounded ? score.limits : names.flatMap((name) => curve[name]);
  const axis = valueAxis(values, score, bounded ? 2 : 3);
  const caption = make("div", undefined, { class: "caption" });
  const chart = svg("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none" });
  for (const tick of axis.ticks) {
    const y = 1000 * (1 - axis.at(tick));
    chart.append(svg("line", { class: "grid", x1: 0, x2: 1000, y1: y, y2: y, "vector-effect": "non-scaling-stroke" }));
  }
  names.forEach((name, k) => {
    const label = make("span");
    label.append(make("span", undefined, { class: "swatch", style: `color: ${COLOURS[k]}` }), SCORES[name].label);
    caption.append(label);
    const kind = dots ? "curve points" : "curve";
    chart.append(svg("path", { class: kind, "data-score": name, stroke: COLOURS[k], d: curvePath(curve, name, axis, end, dots) }));
  });
  return panel(bounded ? 110 : 80, axis, caption, chart);
}

function timeAxis(end) {
  const node = make("div", undefined, { class: "panel" }), times = make("div", undefined, { class: "times" });
  for (const tick of roundValues(0, end, Math.min(10, Math.max(4, innerWidth / 110))))
    times.append(make("span", tickText(tick), { style: `left: ${percent(tick / end)}` }));
  times.append(make("div", "time (s)", { class: "name" }));
  node.append(times);
  return node;
}

// The spectrograms of a row's sounds, then its scores over time.
function drawPanels(row, sounds) {
  const panels = row.curve ? data.panels.map((names) => names.filter((name) => row.curve[name])).filter((names) => names.length) : [];
  const curveLength = panels.length ? row.curve[panels[0][0]].length : 0;
  const curveEnd = curveLength ? row.curve.first + (curveLength - 1) * row.curve.step : 0;
  const end = Math.max(...Object.values(sounds).map((track) => track.seconds), curveEnd) || 1;
  const nodes = Object.entries(sounds).map(([role, track]) => spectrogramPanel(ROLES[role], track, end));
  for (const names of panels) nodes.push(curvePanel(names, row.curve, end, data.sampled || names[0] === "bleed_db"));
  if (nodes.length) nodes.push(timeAxis(end));
  byId("panels").replaceChildren(...nodes);
  return nodes.length ? end : null;
}

// The values of a row's curves at a time.
function curveValues(row, time) {
  const k = Math.round((time - row.curve.first) / row.curve.step);
  const texts = data.panels.flat().filter((name) => row.curve[name])
    .map((name) => `${SCORES[name].label} ${scoreText(name, row.curve[name][k])}`);
  return texts.join(", ");
}
