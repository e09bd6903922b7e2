// Eigenvalues on the complex plane, step by step: one model of DATA.planes at a time.
function drawPlane(svg, values) {
  svg.replaceChildren();
  make(svg, "circle", { cx: 160, cy: 160, r: 140, class: "frame" });
  make(svg, "path", { d: "M12 160H308M160 12V308", class: "grid" });
  for (const [x, y, anchor, name] of [[312, 152, "end", "1"], [8, 152, "start", "−1"], [168, 22, "start", "i"], [168, 308, "start", "−i"]]) make(svg, "text", { x, y, "text-anchor": anchor }, name);
  for (const [re, im] of values) {
    const words = Math.abs(im) < 1e-9 ? short(re) : `${short(re)} ${im < 0 ? "−" : "+"} ${short(Math.abs(im))} i`;
    make(svg, "circle", { cx: 160 + 140 * re, cy: 160 - 140 * im, r: 3.5, style: "fill:var(--c0);fill-opacity:.5", class: "eigenvalue", "data-tip": words });
  }
}

function stepPlane() {
  const plane = DATA.planes.find((each) => each.name === $("plane-model").value);
  $("plane-step").max = plane.steps.length - 1;
  const step = Math.min(+$("plane-step").value, plane.steps.length - 1), [name, values] = plane.steps[step];
  $("plane-name").textContent = name;
  $("plane-words").textContent = plane.words;
  $("plane").setAttribute("aria-label", `${values.length} eigenvalues of ${plane.name} at ${name}, in the unit circle. ${plane.words}`);
  drawPlane($("plane"), values);
}

if (DATA.planes.length) {
  $("plane-model").replaceChildren(...DATA.planes.map((plane) => new Option(plane.name, plane.name)));
  for (const id of ["plane-model", "plane-step"]) $(id).addEventListener("input", stepPlane);
  stepPlane();
}
