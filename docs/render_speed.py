"""Render measured times from results/bench: `python docs/render_speed.py`.

docs/images/time_per_token.svg    time per token of a training step against the length
docs/explanation/products.md      the tables below the comments that name their files
"""

import re
from math import log
from pathlib import Path

from statemix.bench.measure import Row
from statemix.bench.tables import markdown, read_rows

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "results" / "bench" / "zen5"
PAGE = ROOT / "docs" / "explanation" / "products.md"
PICTURE = ROOT / "docs" / "images" / "time_per_token.svg"
BLOCK = re.compile(r"(<!-- (results/bench/\S+) -->\n\n).*?\n\n", re.DOTALL)
SETTING = re.compile(r"2M parameters, B = 1, T = (\d+)$")

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 34, 48
COLOURS = {
    "BD-LRU, m = 4": "#3a66d8",
    "nn.LSTM": "#d98e04",
    "transformer": "#d6402e",
    "transformers Mamba-2": "#2f9e4f",
}
TICKS = (50, 100, 200, 400, 800, 1600, 3200)  # microseconds


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))
    PICTURE.write_text(picture(read_rows([BENCH / "lm.jsonl"])))


def with_tables(page: str) -> str:
    """The page with every table rendered from the file that the comment above it names."""

    def rendered(match: re.Match[str]) -> str:
        return f"{match[1]}{markdown(read_rows([ROOT / match[2]]))}\n\n"

    return BLOCK.sub(rendered, page)


def curves(rows: list[Row]) -> dict[str, dict[int, float]]:
    """Microseconds per token at each length T, for each model, on one sequence in float32."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        match = SETTING.match(row.setting)
        if match and row.entrant in COLOURS and row.rounds:
            T = int(match[1])
            found.setdefault(row.entrant, {})[T] = 1e3 * row.value / T
    return found


def picture(rows: list[Row]) -> str:
    """Time per token against T, both on logarithmic axes."""
    found = curves(rows)
    lengths = sorted({T for curve in found.values() for T in curve})
    top = max(t for curve in found.values() for t in curve.values())
    ticks = [t for t in TICKS if t <= 2 * top]

    def x(T: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _part(T, lengths[0], lengths[-1])

    def y(t: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _part(t, ticks[0], ticks[-1])

    parts = []
    for t in ticks:
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"'
        parts.append(f'<line class="grid" {ends}/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(t) + 5:.1f}" text-anchor="end">{t:,}</text>')
    for T in lengths:
        place = f'x="{x(T):.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle"'
        parts.append(f"<text {place}>{T:,}</text>")
    for name, curve in found.items():
        points = " ".join(f"{x(T):.1f},{y(t):.1f}" for T, t in sorted(curve.items()))
        parts.append(f'<polyline class="line" stroke="{COLOURS[name]}" points="{points}"/>')
        end = y(curve[max(curve)]) + 5
        place = f'x="{WIDTH - RIGHT + 10}" y="{end:.1f}" fill="{COLOURS[name]}"'
        parts.append(f'<text class="name" {place}>{name}</text>')
    parts.append(f'<text x="{LEFT - 8}" y="18">µs per token</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">tokens</text>')
    return _frame("\n".join(parts))


def _part(value: float, low: float, high: float) -> float:
    """The place of a value on a logarithmic axis, 0 at `low` and 1 at `high`."""
    return log(value / low) / log(high / low)


def _frame(body: str) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>Time per token of a training step, against the length of the sequence</title>
<desc>Language models of two million parameters, one thread, float32.</desc>
<style>
text {{ font: 14px system-ui, sans-serif }} text:not(.name) {{ fill: #1b1e23 }}
.name {{ font-weight: 600 }} .paper {{ fill: #ffffff }} .grid {{ stroke: #d9dce2 }}
.line {{ fill: none; stroke-width: 3 }}
@media (prefers-color-scheme: dark) {{
text:not(.name) {{ fill: #e7e9ed }} .paper {{ fill: #15171c }} .grid {{ stroke: #363b45 }}
}}
</style>
<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>
{body}
</svg>
"""


if __name__ == "__main__":
    main()
