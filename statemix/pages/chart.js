"use strict";
// Draws DATA.charts into the elements that name them, and the eigenvalues of DATA.planes; tooltips.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 4", "2 3"];
const MARGIN = { right: 14, top: 10 };
const short = (value) => value === null || Number.isNaN(value) ? "–" : Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));

function make(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Tooltips: of every element with data-tip, for a mouse, a finger and the keyboard.
function showTip(event) {
  const target = event.target.closest && event.target.closest("[data-tip]"), tip = $("tip");
  if (!target) { tip.style.display = "none"; return; }
  tip.textContent = target.dataset.tip;
  tip.style.display = "block";
  const box = target.getBoundingClientRect(), width = document.documentElement.clientWidth;
  const left = Math.min(Math.max(8, box.left + box.width / 2), width - tip.offsetWidth - 8);
  const below = box.bottom + 10 + tip.offsetHeight < innerHeight;
  const top = below || box.top < tip.offsetHeight + 10 ? box.bottom + 10 : box.top - tip.offsetHeight - 10;
  Object.assign(tip.style, { left: `${left + scrollX}px`, top: `${top + scrollY}px` });
}
for (const kind of ["pointerover", "pointerdown", "focusin"]) document.addEventListener(kind, showTip);

const colourOf = (series, i) => `var(--c${(series.colour < 0 ? i : series.colour) % 8})`;

function rangeOf(axis, values) {
  const found = values.filter((value) => Number.isFinite(value) && (!axis.log || value > 0));
  let low = axis.low ?? Math.min(...found), high = axis.high ?? Math.max(...found);
  if (low === high) { low = axis.log ? low / 2 : low - 0.5; high = axis.log ? high * 2 : high + 0.5; }
  return [low, high];
}

function scaleOf(axis, [low, high], from, to) {
  const of = axis.log ? Math.log : (value) => value;
  return (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
}

function ticksOf(axis, [low, high]) {
  if (axis.ticks.length) return axis.ticks.filter(([value]) => value >= low && value <= high);
  if (axis.log) {
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) powers.push(10 ** power);
    const inside = (values) => values.filter((value) => value >= low && value <= high).map((value) => [value, short(value)]);
    const few = inside(powers), more = inside(powers.flatMap((power) => [1, 2, 5].map((digit) => digit * power)));
    return few.length > 1 ? few : more.length > 1 ? more : inside([low, high]);
  }
  const step = 10 ** Math.floor(Math.log10((high - low) / 2)) * ((high - low) / 10 ** Math.floor(Math.log10((high - low) / 2)) > 5 ? 2 : 1);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) ticks.push([value, short(value)]);
  return ticks;
}

const measure = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  measure.font = `12.5px ${getComputedStyle(document.body).fontFamily}`;
  return measure.measureText(text).width + 2;
}

// The ticks of a numeric axis that fit beside each other; names of categories are turned instead.
function fitTicks(ticks, x) {
  const shown = [];
  let free = -Infinity;
  for (const [value, name] of ticks) {
    const half = textWidth(name) / 2;
    if (x(value) - half < free) continue;
    shown.push([value, name]);
    free = x(value) + half + 6;
  }
  return shown;
}

function drawFrame(svg, spec, size, x, y, xTicks, yTicks, turned) {
  for (const [value, name] of yTicks) {
    make(svg, "line", { x1: size.left, x2: size.width - MARGIN.right, y1: y(value), y2: y(value), class: "grid" });
    make(svg, "text", { x: size.left - 6, y: y(value) + 4, "text-anchor": "end" }, name);
  }
  const base = size.height - size.bottom;
  for (const [value, name] of xTicks) {
    make(svg, "line", { x1: x(value), x2: x(value), y1: base, y2: base + 4, class: "frame" });
    const place = turned ? { "text-anchor": "end", transform: `rotate(-45 ${x(value) + 4} ${base + 16})` } : { "text-anchor": "middle" };
    const inside = turned ? x(value) + 4 : Math.min(x(value), size.width - textWidth(name) / 2);
    make(svg, "text", { x: inside, y: base + 18 - (turned ? 2 : 0), ...place }, name);
  }
}

function tipOf(spec, series, point) {
  const name = new Map(spec.x.ticks).get(point.x);
  const where = name !== undefined ? name : short(point.x);
  const spread = point.low !== null && point.high !== null && point.high > point.low ? ` (${short(point.low)} to ${short(point.high)})` : "";
  return `${series.name}\n${spec.x.label}: ${where}\n${spec.y.label}: ${short(point.y)}${spread}${point.words ? "\n" + point.words : ""}`;
}

function drawSeries(svg, spec, series, i, x, y) {
  const colour = colourOf(series, i), points = series.points.filter((point) => Number.isFinite(point.y));
  if (series.band) {
    const upper = points.map((p) => `${x(p.x)},${y(p.high ?? p.y)}`), lower = points.map((p) => `${x(p.x)},${y(p.low ?? p.y)}`).reverse();
    make(svg, "polygon", { points: [...upper, ...lower].join(" "), style: `fill:${colour};fill-opacity:.16` });
  }
  if (series.line) make(svg, "polyline", { points: points.map((p) => `${x(p.x)},${y(p.y)}`).join(" "), style: `fill:none;stroke:${colour};stroke-width:2`, "stroke-dasharray": DASHES[series.dash % 3] });
  for (const p of points) {
    if (!series.band && p.low !== null) make(svg, "line", { x1: x(p.x), x2: x(p.x), y1: y(p.low), y2: y(p.high), style: `stroke:${colour};stroke-width:1.5` });
    make(svg, "circle", { cx: x(p.x), cy: y(p.y), r: series.hollow ? 5.5 : 4, class: "point", style: `fill:${series.hollow ? "var(--paper)" : colour};stroke:${colour};stroke-width:${series.hollow ? 2 : 0}` });
    make(svg, "circle", { cx: x(p.x), cy: y(p.y), r: 9, class: "hit", fill: "transparent", "data-tip": tipOf(spec, series, p) });
  }
}

function legendOf(spec) {
  const list = element("ul", { class: "legend" });
  spec.series.forEach((series, i) => {
    const sample = document.createElementNS(SVG, "svg"), colour = colourOf(series, i);
    for (const [key, value] of Object.entries({ width: 30, height: 12, "aria-hidden": "true" })) sample.setAttribute(key, value);
    if (series.line) make(sample, "path", { d: "M0 6H30", style: `stroke:${colour};stroke-width:2`, "stroke-dasharray": DASHES[series.dash % 3] });
    make(sample, "circle", { cx: 15, cy: 6, r: 4, style: `fill:${series.hollow ? "var(--paper)" : colour};stroke:${colour};stroke-width:2` });
    list.append(element("li", {}, sample, series.name));
  });
  return list;
}

function layout(spec, width) {
  const all = spec.series.flatMap((series) => series.points);
  const ys = all.flatMap((p) => [p.y, p.low, p.high]).filter((value) => value !== null);
  const yRange = rangeOf(spec.y, ys), xRange = rangeOf(spec.x, all.map((p) => p.x)), yTicks = ticksOf(spec.y, yRange);
  const pad = spec.x.low !== null ? 0 : 16, names = ticksOf(spec.x, xRange);
  let left = Math.max(20, ...yTicks.map(([, name]) => textWidth(name))) + 8;
  const across = () => scaleOf(spec.x, xRange, left + pad, width - MARGIN.right - pad);
  const isNumeric = names.every(([, name]) => /^[\d.,−-]+$/.test(name));
  const turned = !isNumeric && fitTicks(names, across()).length < names.length;
  if (turned) left += Math.max(0, ...names.map(([value, name]) => (textWidth(name) * 0.72 - across()(value)) * 1.1 + 4));
  const x = across(), fitting = fitTicks(names, x);
  const bottom = turned ? Math.max(...names.map(([, name]) => textWidth(name))) * 0.72 + 26 : 26;
  const height = spec.square ? width : Math.min(Math.max(width * 0.5, 210), 400) + bottom;
  return { size: { left, bottom, width, height }, x, y: scaleOf(spec.y, yRange, height - bottom, MARGIN.top), xTicks: turned ? names : fitting, yTicks, turned };
}

function drawChart(parent, spec) {
  const width = parent.clientWidth;
  const { size, x, y, xTicks, yTicks, turned } = layout(spec, width);
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ width, height: size.height, viewBox: `0 0 ${width} ${size.height}`, role: "img", "aria-label": spec.alt })) svg.setAttribute(key, value);
  drawFrame(svg, spec, size, x, y, xTicks, yTicks, turned);
  spec.series.forEach((series, i) => drawSeries(svg, spec, series, i, x, y));
  const title = spec.title ? [element("h4", {}, spec.title)] : [];
  parent.replaceChildren(...title, element("p", { class: "axis" }, spec.y.label), svg, element("p", { class: "axis x" }, spec.x.label), legendOf(spec));
}

function fillNumbers(details, specs) {
  for (const spec of specs) {
    const names = new Map(spec.x.ticks), table = element("table", {}, element("caption", {}, spec.title));
    const head = ["", spec.x.label, spec.y.label].map((name) => element("th", { scope: "col" }, name));
    table.append(element("thead", {}, element("tr", {}, ...head)));
    const rows = spec.series.flatMap((series) => series.points.map((p) => [series.name, names.get(p.x) ?? short(p.x), short(p.y) + (p.words ? ` (${p.words})` : "")]));
    table.append(element("tbody", {}, ...rows.map(([first, ...rest]) => element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((text) => element("td", {}, text))))));
    details.append(table);
  }
}

const drawn = new Map();
const redraw = new ResizeObserver((entries) => {
  for (const { target } of entries) if (drawn.has(target) && target.clientWidth !== drawn.get(target).width) redrawChart(target, drawn.get(target).spec);
});
function redrawChart(target, spec) {
  drawn.set(target, { spec, width: target.clientWidth });
  drawChart(target, spec);
}

for (const target of document.querySelectorAll("[data-chart]")) {
  redrawChart(target, DATA.charts[target.dataset.chart]);
  redraw.observe(target);
}
for (const details of document.querySelectorAll("figure > details")) {
  details.addEventListener("toggle", () => {
    const panels = [...details.parentElement.querySelectorAll("[data-chart]")];
    if (details.childElementCount === 1) fillNumbers(details, panels.map((panel) => DATA.charts[panel.dataset.chart]));
  });
}
