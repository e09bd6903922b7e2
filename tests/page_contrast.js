// The lowest contrast between a text and the background behind it.
const parse = (colour) => (colour.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => { for (; node; node = node.parentElement) { const colour = parse(getComputedStyle(node).backgroundColor); if (colour.length < 4 || colour[3] > 0) return colour; } return [255, 255, 255]; };
let worst = [99, ""];
for (const node of document.querySelectorAll("main *")) {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.getBoundingClientRect().width) continue;
  const style = getComputedStyle(node), inSvg = node instanceof SVGElement;
  const paper = inSvg && node.closest("svg").querySelector(".paper");
  const ink = light(parse(inSvg ? style.fill : style.color)), ground = light(paper ? parse(getComputedStyle(paper).fill) : behind(node));
  const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  if (ratio < worst[0]) worst = [ratio, `${node.tagName} ${node.textContent.slice(0, 40)}`];
}
return worst;
