// What is wrong with the layout of a page: text that is cut off or covered, and missing descriptions.
const faults = [], near = 1.5;
const said = (node) => (node.textContent || node.id).trim().slice(0, 40);
if (document.documentElement.scrollWidth > innerWidth) faults.push(`the page is ${document.documentElement.scrollWidth} wide`);
for (const node of document.querySelectorAll("main *:not(svg *, .wide *)")) {
  const box = node.getBoundingClientRect();
  if (box.width && (box.right > innerWidth + near || box.left < -near)) faults.push(`<${node.tagName}> ${said(node)} leaves the page`);
}
for (const cell of document.querySelectorAll("th, td")) {
  if (cell.scrollWidth > cell.clientWidth + near) faults.push(`${said(cell)} is wider than its cell`);
}
for (const svg of document.querySelectorAll("svg:not([aria-hidden])")) {
  if (!svg.getBoundingClientRect().width) continue;
  if (!svg.getAttribute("aria-label") && !svg.querySelector("title")) faults.push(`an SVG in #${svg.closest("[id]").id} has no description`);
  const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent), frame = svg.getBoundingClientRect();
  for (const text of texts) {
    const box = text.getBoundingClientRect();
    if (box.left < frame.left - near || box.right > frame.right + near || box.top < frame.top - near || box.bottom > frame.bottom + near) faults.push(`text ${said(text)} leaves its figure`);
    if (box.height < 12) faults.push(`text ${said(text)} is ${box.height.toFixed(1)} high`);
  }
  const level = texts.filter((text) => !(text.getAttribute("transform") || "").includes("rotate")).map((text) => [text, text.getBoundingClientRect()]);
  level.forEach(([one, a], i) => level.slice(i + 1).forEach(([other, b]) => {
    if (a.left < b.right - near && b.left < a.right - near && a.top < b.bottom - 4 && b.top < a.bottom - 4) faults.push(`texts ${said(one)} and ${said(other)} overlap`);
  }));
}
for (const image of document.querySelectorAll("img:not([alt])")) faults.push("an image has no alternative text");
return faults;
