// The explorer: choose an experiment, a task, models and block sizes; a chart and a table of the same numbers.
const unique = (values) => [...new Set(values)];
const digits = (value) => value === null ? "–" : value.toFixed(3);

const signed = (value) => Math.abs(value) < 0.0005 ? "0" : (value > 0 ? "+" : "−") + digits(Math.abs(value));

function fill(select, values) {
  const before = select.value;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(before)) select.value = before;
}

const placesNow = () => DATA.places.filter((place) => place.experiment === $("experiment").value);

function chooseExperiment() {
  const places = placesNow(), sizes = places.map((place) => place.m).filter((m) => m !== null);
  fill($("column"), unique(places.map((place) => place.column)));
  $("kinds").replaceChildren(...unique(places.map((place) => place.kind)).map((kind) => {
    const box = element("input", { type: "checkbox", value: kind });
    box.checked = true;
    box.addEventListener("change", explore);
    return element("label", {}, box, ` ${kind}`);
  }));
  $("largest").max = Math.max(1, ...sizes);
  $("largest").value = $("largest").max;
  explore();
}

function shown() {
  const kinds = [...$("kinds").querySelectorAll("input:checked")].map((box) => box.value), largest = +$("largest").value;
  $("largest-text").textContent = largest;
  return placesNow().filter((place) => place.column === $("column").value && kinds.includes(place.kind) && (place.m ?? 0) <= largest);
}

function describeRuns(measured) {
  const runs = measured.runs.map((run) => `seed ${run.seed}: ${digits(run.test)} (lr ${run.lr}, ${Math.round(run.cpu_seconds)} s, ${run.commit})`);
  return `${measured.recipe}\nn = ${measured.runs.length}, best ${digits(measured.best)}\n${measured.parameters.toLocaleString("en")} parameters\n${runs.join("\n")}`;
}

function pointOf(x, measured) {
  const several = measured.runs.length > 1, { mean, deviation } = measured;
  return { x, y: mean, low: several ? Math.max(0, mean - deviation) : null, high: several ? Math.min(1, mean + deviation) : null, words: describeRuns(measured) };
}

function chartOf(places) {
  const names = unique(places.filter((place) => place.m !== null).map((place) => place.m)).sort((a, b) => a - b);
  const ticks = [...names.map((m) => `m = ${m}`), ...unique(places.filter((place) => place.m === null).map((place) => place.row))];
  const xOf = (place) => place.m !== null ? names.indexOf(place.m) : ticks.indexOf(place.row);
  const lines = unique(places.flatMap((place) => place.measured.map((measured) => `${place.kind}\n${measured.recipe}`)));
  const series = lines.map((line, i) => {
    const points = places.flatMap((place) => place.measured.filter((measured) => `${place.kind}\n${measured.recipe}` === line).map((measured) => pointOf(xOf(place), measured)));
    points.sort((a, b) => a.x - b.x);
    return { name: line.replace("\n", ", "), points, line: points.length > 1, colour: i % 8, dash: Math.floor(i / 8), hollow: false, band: false };
  });
  const paper = places.filter((place) => place.paper !== null).map((place) => ({ x: xOf(place), y: place.paper, low: null, high: null, words: place.row }));
  if (paper.length) series.push({ name: "the paper", points: paper, line: false, colour: 7, dash: 0, hollow: true, band: false });
  const y = { label: "accuracy", log: false, low: 0, high: 1, ticks: [[0, "0"], [0.25, ".25"], [0.5, ".5"], [0.75, ".75"], [1, "1"]] };
  const x = { label: "model", log: false, low: -0.5, high: ticks.length - 0.5, ticks: ticks.map((name, i) => [i, name]) };
  const title = `${$("experiment").value}: ${$("column").value}`;
  return { title, x, y, series, square: false, alt: `${title}. Accuracy of ${places.length} models; the table below has the same numbers.` };
}

function rowOf(place, measured) {
  const cells = [element("th", { scope: "row" }, place.row)];
  if (!measured) cells.push(element("td", { class: "recipe" }, "not run yet"), element("td", {}, digits(place.paper)), element("td", {}, "–"));
  else {
    cells[0].append(element("span", { class: "recipe" }, measured.recipe));
    const n = measured.runs.length, spread = element("span", { class: "spread" }, n > 1 ? `± ${digits(measured.deviation)} ` : "", element("b", {}, `n ${n}`));
    const ours = element("td", { tabindex: 0, "data-tip": `${place.row}\n${describeRuns(measured)}` }, digits(measured.mean), " ", spread);
    const difference = place.paper === null ? "–" : signed(measured.mean - place.paper);
    cells.push(ours, element("td", {}, digits(place.paper)), element("td", {}, difference));
  }
  return element("tr", {}, ...cells);
}

function explore() {
  const places = shown(), head = ["model", "here", "paper", "difference"].map((name) => element("th", { scope: "col" }, name));
  redrawChart($("plot"), chartOf(places));
  const rows = places.flatMap((place) => place.measured.length ? place.measured.map((measured) => rowOf(place, measured)) : [rowOf(place, null)]);
  $("cells").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
  const all = placesNow(), missing = all.filter((place) => !place.measured.length).length;
  $("missing").textContent = missing ? `${missing} of the experiment's ${all.length} cells have not been run yet.` : `All ${all.length} cells of the experiment have been run.`;
}

redraw.observe($("plot"));
fill($("experiment"), unique(DATA.places.map((place) => place.experiment)));
$("experiment").addEventListener("change", chooseExperiment);
for (const id of ["column", "largest"]) $(id).addEventListener("input", explore);
chooseExperiment();
