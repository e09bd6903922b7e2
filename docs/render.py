"""Render the figures of README and docs from the ledger: `python docs/render.py`.

docs/images/length.svg    accuracy on S5 against length, from experiments/readme_length.py
docs/howto/choose.md      the table between its comments: the best measured models by task
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from statemix.sweep import Ledger, load_places
from statemix.sweep.ledger import Entry

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "length.svg"
CHOICES = ROOT / "docs" / "howto" / "choose.md"
BEGIN, END = "<!-- rendered by python docs/render.py -->\n", "<!-- end -->\n"

# The picture
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 250, 34, 48
NAMES = {
    "BD-LRU m5": "BD-LRU, blocks of five",
    "LSTM": "LSTM",
    "Mamba2": "Mamba-2",
    "BD-LRU m1": "diagonal (blocks of one)",
}
COLOURS = {
    "BD-LRU m5": ("#3a66d8", "#7d9df5"),
    "LSTM": ("#d98e04", "#e3a93a"),
    "Mamba2": ("#2f9e4f", "#55bf74"),
    "BD-LRU m1": ("#e0523f", "#ee7d6d"),
}
LEARNED = 0.9  # accuracy at the training length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ledger", type=Path, default=ROOT / "results" / "ledger.jsonl")
    entries = [e for e in Ledger(parser.parse_args().ledger).read()[0] if e.status == "done"]
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(entries))
    CHOICES.write_text(with_table(CHOICES.read_text(), entries))
    for row, (seconds, runs, curve) in curves(entries).items():
        last = max(curve)
        end = statistics.mean(curve[last])
        print(f"{row}: {seconds:.0f} CPU s, {runs} seeds, {end:.4f} at {last}")


def curves(entries: list[Entry]) -> dict[str, tuple[float, int, dict[int, list[float]]]]:
    """Median CPU seconds, number of runs, and accuracies by length, for each row of the picture."""
    found = {entry.id: entry for entry in entries}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in load_places(ROOT / "experiments" / "readme_length.py"):
        entry = found.get(cell.config.id)
        if entry is not None and entry.result is not None:
            rows[cell.row].append(entry.result)
    return {
        row: (
            statistics.median(result["cpu_seconds"] for result in results),
            len(results),
            {
                int(length): [result["measured"]["by_length"][length] for result in results]
                for length in sorted(results[0]["measured"]["by_length"], key=int)
            },
        )
        for row, results in rows.items()
    }


def picture(entries: list[Entry]) -> str:
    """The README's picture: a line for the mean of each model, a band for the range over seeds."""
    found = curves(entries)
    lengths = sorted({length for _, _, curve in found.values() for length in curve})
    parts = [_axes(lengths)]
    ends = _spread(
        [(row, statistics.mean(found[row][2][lengths[-1]])) for row in NAMES if row in found]
    )
    for index, row in enumerate(NAMES):
        if row not in found:
            continue
        seconds, runs, curve = found[row]
        low = [(_x(t, lengths), _y(min(curve[t]))) for t in lengths]
        high = [(_x(t, lengths), _y(max(curve[t]))) for t in lengths]
        middle = [(_x(t, lengths), _y(statistics.mean(curve[t]))) for t in lengths]
        parts.append(f'<polygon class="c{index} band" points="{_points(low + high[::-1])}"/>')
        parts.append(f'<polyline class="c{index} line" points="{_points(middle)}"/>')
        y = ends[row]
        x = WIDTH - RIGHT + 14
        parts.append(f'<text class="c{index} name" x="{x}" y="{y:.1f}">{NAMES[row]}</text>')
        learned = statistics.mean(curve[lengths[0]]) > LEARNED
        did = f"{seconds:.0f} s to train" if learned else f"not learned in {seconds:.0f} s"
        note = f"{did}, {runs} seed{'s' * (runs > 1)}"
        parts.append(f'<text class="faint" x="{x}" y="{y + 16:.1f}">{note}</text>')
    return _frame("\n".join(parts))


def _frame(body: str) -> str:
    light = "\n".join(_colour(i, COLOURS[row][0]) for i, row in enumerate(NAMES))
    dark = "\n".join(_colour(i, COLOURS[row][1]) for i, row in enumerate(NAMES))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>Accuracy on products of permutations of five elements, by length</title>
<desc>Models of one layer, trained on 16 tokens, tested on up to 65,536.</desc>
<style>
text {{ font: 14px system-ui, sans-serif; fill: #1b1e23 }}
.name {{ font-weight: 600 }} .faint {{ fill: #63676f; font-size: 13px }} .paper {{ fill: #ffffff }}
.grid {{ stroke: #d9dce2 }} .line {{ fill: none; stroke-width: 3 }}
.band {{ stroke: none; opacity: .18 }}
{light}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e7e9ed }} .faint {{ fill: #a2a7b1 }} .paper {{ fill: #15171c }}
.grid {{ stroke: #363b45 }}
{dark}
}}
</style>
<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>
{body}
</svg>
"""


def _colour(index: int, colour: str) -> str:
    name = f".c{index}"
    return f"{name}.line {{ stroke: {colour} }} {name}.band, {name}.name {{ fill: {colour} }}"


def _axes(lengths: list[int]) -> str:
    """Grid lines, ticks and labels."""
    right = WIDTH - RIGHT
    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = _y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{value:g}</text>')
    for length in lengths:
        x = _x(length, lengths)
        text = f"{length:,}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{text}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">tokens (16 in training)</text>'
    )
    parts.append(
        f'<text x="{LEFT}" y="18">accuracy on S5, products of permutations of five things</text>'
    )
    return "\n".join(parts)


def _x(length: int, lengths: list[int]) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * lengths.index(length) / (len(lengths) - 1)


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _spread(values: list[tuple[str, float]]) -> dict[str, float]:
    """Heights of labels next to the ends of their lines, without overlap."""
    heights: dict[str, float] = {}
    lowest = HEIGHT - BOTTOM - 12.0
    for row, value in sorted(values, key=lambda item: item[1]):
        heights[row] = min(_y(value) + 5, lowest)
        lowest = heights[row] - 40
    return heights


# The table


def with_table(text: str, entries: list[Entry]) -> str:
    """The page with its table rendered from the ledger."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + table(entries) + "\n" + END + after


def table(entries: list[Entry]) -> str:
    """For each task, the BD-LRU and the H-LRU with the best mean validation accuracy."""
    groups: dict[tuple[str, str], dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        mixer = entry.config.get("model", {}).get("mixer")
        if mixer in ("bdlru", "hlru") and "task" in entry.config and _is_plain(entry):
            same = {key: value for key, value in entry.config.items() if key != "seed"}
            groups[(_task(entry), mixer)][json.dumps(same, sort_keys=True)].append(entry)
    lines = [
        "| task | layer | m | n | start | optimiser, rate | sequences | accuracy | seeds | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, mixer), choices in sorted(groups.items()):
        best = max(choices.values(), key=_merit)
        if _accuracy(best) >= 0.7:
            lines.append(_line(task, mixer, best))
    return "\n".join(lines) + "\n"


def _task(entry: Entry) -> str:
    options = entry.config.get("task_options", {})
    length = entry.config.get("length")
    words = [entry.config["task"], f"{length} tokens" if length else "", *_options(options)]
    return " ".join(word for word in words if word)


def _options(options: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(options.items())]


def _is_plain(entry: Entry) -> bool:
    """One layer, softmax gates, chosen on validation."""
    model = entry.config["model"]
    softmax = model["options"].get("gate", "softmax") == "softmax"
    return softmax and model["layers"] == 1 and entry.config.get("protocol", "honest") == "honest"


def _merit(entries: list[Entry]) -> tuple[float, int, float]:
    """Mean validation accuracy to three digits, then more seeds, then less time."""
    validation = statistics.mean(_result(e)["validation"]["token"] for e in entries)
    return round(validation, 3), min(len(entries), 20), -_seconds(entries)


def _result(entry: Entry) -> dict[str, Any]:
    assert entry.result is not None
    return entry.result


def _accuracy(entries: list[Entry]) -> float:
    return statistics.mean(_result(e)["test"]["token"] for e in entries)


def _seconds(entries: list[Entry]) -> float:
    return statistics.median(_result(e)["cpu_seconds"] for e in entries)


def _line(task: str, mixer: str, entries: list[Entry]) -> str:
    config = entries[0].config
    options = config["model"]["options"]
    m = options.get("block_size", options.get("order"))
    n = options.get("n_blocks", options.get("n_channels"))
    optimiser = config.get("optimiser", "adamw")
    start = options.get("init", "paper")
    start = start if isinstance(start, str) else "own"
    rate = config.get("matrix_lr", 0.02) if config.get("optimiser") == "muon" else config["lr"]
    aids = ", curriculum" if config.get("curriculum") else ""
    values = [_result(e)["test"]["token"] for e in entries]
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    layer = {"bdlru": "BD-LRU", "hlru": "H-LRU"}[mixer]
    return (
        f"| {task} | {layer} | {m} | {n} | {start} | {optimiser} {rate:g}{aids} "
        f"| {config['train_examples']:,} | {statistics.mean(values):.3f}{spread} | {len(values)} "
        f"| {_seconds(entries):.0f} |"
    )


if __name__ == "__main__":
    main()
