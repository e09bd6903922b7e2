"use strict";
// Draws the report from DATA, which the page defines: experiments → places with runs, eigenvalues, and the paper's values.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#97bbf5"];

function make(parent, name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

const DASHES = ["", "6 3", "2 3"];  // the line style changes when the colours repeat
const kindOf = (row) => row.replace(/ m\d+$/, "").replace(/ k\d+$/, "");
const sizeOf = (row) => { const found = row.match(/ m(\d+)$/); return found ? +found[1] : null; };
const unique = (values) => [...new Set(values)];
const text = (value) => (value === null ? "–" : value.toFixed(3));

function fill(select, values) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(before)) select.value = before;
}

function placesNow() {
  return DATA.places.filter((p) => p.experiment === $("experiment").value);
}

function chooseExperiment() {
  const places = placesNow();
  fill($("column"), unique(places.map((p) => p.column)));
  const kinds = unique(places.map((p) => kindOf(p.row)));
  $("kinds").replaceChildren(...kinds.map((kind) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true, value: kind });
    box.addEventListener("change", draw);
    label.append(box, " " + kind);
    return label;
  }));
  const sizes = places.map((p) => sizeOf(p.row)).filter((m) => m !== null);
  $("largest").max = sizes.length ? Math.max(...sizes) : 1;
  $("largest").value = $("largest").max;
  draw();
}

function shown() {
  const kinds = [...$("kinds").querySelectorAll("input:checked")].map((box) => box.value);
  const largest = +$("largest").value;
  $("largest-text").textContent = largest;
  return placesNow().filter((p) => kinds.includes(kindOf(p.row)) && (sizeOf(p.row) ?? 0) <= largest);
}

function describe(place, measured) {
  const runs = measured.runs.map((r) => `seed ${r.seed}: ${text(r.test)} (lr ${r.lr}, ${Math.round(r.cpu_seconds)} s, ${r.commit})`);
  const paper = place.paper === null ? "" : `\npaper: ${text(place.paper)}`;
  return `${place.row}, ${place.column}\n${measured.recipe}: mean ${text(measured.mean)} ± ${text(measured.deviation)}${paper}\n` +
    `${measured.parameters.toLocaleString("en")} parameters\n${runs.join("\n")}`;
}

function tip(node, words) {
  node.addEventListener("mouseenter", (event) => {
    Object.assign($("tip").style, { left: `${event.pageX + 12}px`, top: `${event.pageY + 12}px`, display: "block" });
    $("tip").textContent = words;
  });
  node.addEventListener("mouseleave", () => { $("tip").style.display = "none"; });
}

const FRAME = { left: 50, right: 20, top: 14, bottom: 110, width: 720, height: 410 };
const yOf = (value) => FRAME.top + (1 - value) * (FRAME.height - FRAME.top - FRAME.bottom);

function frame(svg, ticks) {
  svg.replaceChildren();
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    make(svg, "line", { x1: FRAME.left, x2: FRAME.width - FRAME.right, y1: yOf(value), y2: yOf(value), stroke: "#e4e4e4" });
    make(svg, "text", { x: FRAME.left - 8, y: yOf(value) + 4, "text-anchor": "end" }, value);
  }
  const y = FRAME.height - FRAME.bottom + 18, crowded = ticks.some(([, name]) => name.length > 7) && ticks.length > 4;
  svg.setAttribute("viewBox", `0 0 ${FRAME.width} ${FRAME.height - (crowded ? 0 : 75)}`);
  for (const [x, name] of ticks) {
    const turned = crowded ? { "text-anchor": "end", transform: `rotate(-40 ${x} ${y})` } : { "text-anchor": "middle" };
    make(svg, "text", { x, y, ...turned }, name);
  }
}

function explain(line, colour, dash) {
  const entry = document.createElement("span"), sample = document.createElementNS(SVG, "svg");
  Object.entries({ width: 34, height: 12 }).forEach(([key, value]) => sample.setAttribute(key, value));
  make(sample, "path", { d: "M0 6H34", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash });
  make(sample, "circle", { cx: 17, cy: 6, r: 4, fill: colour });
  entry.append(sample, line);
  $("legend").append(entry);
}

function drawPlot() {
  const svg = $("plot"), places = shown().filter((p) => p.column === $("column").value);
  const names = unique(places.map((p) => sizeOf(p.row) ?? p.row)).sort((a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : 1);
  const width = FRAME.width - FRAME.left - FRAME.right;
  const xOf = (place) => FRAME.left + ((names.indexOf(sizeOf(place.row) ?? place.row) + 0.5) / names.length) * width;
  frame(svg, names.map((name, i) => [FRAME.left + ((i + 0.5) / names.length) * width, typeof name === "number" ? `m = ${name}` : name]));
  const lines = unique(places.flatMap((p) => p.measured.map((m) => `${kindOf(p.row)}, ${m.recipe}`)));
  $("legend").replaceChildren();
  lines.forEach((line, i) => {
    const colour = COLOURS[i % COLOURS.length], dash = DASHES[Math.floor(i / COLOURS.length) % DASHES.length];
    const points = places.flatMap((p) => p.measured.filter((m) => `${kindOf(p.row)}, ${m.recipe}` === line).map((m) => [p, m]));
    points.sort((a, b) => xOf(a[0]) - xOf(b[0]));
    const path = points.map(([p, m]) => `${xOf(p)},${yOf(m.mean)}`).join(" ");
    make(svg, "polyline", { points: path, fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": dash });
    for (const [p, m] of points) {
      make(svg, "line", { x1: xOf(p), x2: xOf(p), y1: yOf(m.mean - m.deviation), y2: yOf(m.mean + m.deviation), stroke: colour });
      const dot = make(svg, "circle", { cx: xOf(p), cy: yOf(m.mean), r: 5, fill: colour, class: "point" });
      tip(dot, describe(p, m));
    }
    explain(line, colour, dash);
  });
  for (const p of places.filter((p) => p.paper !== null)) {
    const ring = make(svg, "circle", { cx: xOf(p), cy: yOf(p.paper), r: 8, fill: "none", stroke: "#555", "stroke-dasharray": "3 2" });
    tip(ring, `${p.row}, ${p.column}\nthe paper: ${text(p.paper)}`);
  }
}

function drawTable() {
  const places = shown(), columns = unique(places.map((p) => p.column)), rows = unique(places.map((p) => p.row));
  const table = $("cells");
  table.replaceChildren();
  const head = table.insertRow();
  for (const name of ["", ...columns]) head.appendChild(Object.assign(document.createElement("th"), { textContent: name }));
  for (const row of rows) {
    const line = table.insertRow();
    line.insertCell().textContent = row;
    for (const column of columns) {
      const cell = line.insertCell(), place = places.find((p) => p.row === row && p.column === column);
      if (!place) continue;
      const paper = place.paper === null ? "" : ` (${text(place.paper)})`;
      cell.textContent = place.measured.length ? text(place.accuracy) + paper : "not run yet" + paper;
      cell.className = place.measured.length ? (place.accuracy > 0.9995 ? "solved" : "") : "missing";
      if (place.measured.length) tip(cell, place.measured.map((m) => describe(place, m)).join("\n\n"));
    }
  }
  const missing = places.filter((p) => !p.measured.length).length;
  $("missing").textContent = missing ? `${missing} of ${places.length} cells have not been run yet.` : `All ${places.length} cells have been run.`;
}

function draw() { drawPlot(); drawTable(); }

function drawSpectrum() {
  const spectrum = DATA.spectra.find((s) => s.row === $("spectrum").value), svg = $("plane");
  svg.replaceChildren();
  if (!spectrum) return;
  $("time").max = spectrum.steps.length - 1;
  const step = Math.min(+$("time").value, spectrum.steps.length - 1);
  const first = spectrum.bos ? 0 : 1, last = spectrum.steps.length - 1 + first;
  $("time-text").textContent = step + first === 0 ? "the BOS token" : `token ${step + first} of ${last}`;
  $("shares").textContent = `${(100 * spectrum.negative).toFixed(1)} % of all eigenvalues are negative, ${(100 * spectrum.complex).toFixed(1)} % complex.`;
  make(svg, "circle", { cx: 160, cy: 160, r: 140, fill: "none", stroke: "#bbb" });
  make(svg, "path", { d: "M0 160H320M160 0V320", stroke: "#ddd" });
  for (const [re, im] of spectrum.steps[step]) {
    const dot = make(svg, "circle", { cx: 160 + 140 * re, cy: 160 - 140 * im, r: 3, fill: "#4269d0", "fill-opacity": 0.5, class: "eigenvalue" });
    tip(dot, `${re} ${im < 0 ? "−" : "+"} ${Math.abs(im)} i`);
  }
}

fill($("experiment"), unique(DATA.places.map((p) => p.experiment)));
fill($("spectrum"), DATA.spectra.map((s) => s.row));
$("spectra").hidden = DATA.spectra.length === 0;
$("experiment").addEventListener("change", chooseExperiment);
for (const id of ["column", "largest"]) $(id).addEventListener("input", draw);
for (const id of ["spectrum", "time"]) $(id).addEventListener("input", drawSpectrum);
chooseExperiment();
drawSpectrum();
