"""Draw accuracy on stories against the number of events: `python docs/render_stories.py`.

docs/images/stories.svg    a chart for each kind, from the runs of experiments/stories.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from statemix.report.drawing import save_figure
from statemix.report.stories import STORIES, stories_figure

ROOT = Path(__file__).parents[1]
LEDGER = ROOT / "results" / "ledger.jsonl"
PICTURE = ROOT / "docs" / "images" / "stories.svg"


def main(ledger: Path = LEDGER, picture: Path = PICTURE) -> None:
    """Write the picture; its fonts are drawn as paths."""
    figure = stories_figure(ROOT / "experiments" / STORIES, ledger)
    if figure is None:
        raise SystemExit(f"{ledger} has no run of experiments/{STORIES}.")
    with TemporaryDirectory() as directory:
        written = save_figure(figure, Path(directory))
        svg = next(path for path in written if path.suffix == ".svg").read_text()
    lines = (line.rstrip() for line in svg.splitlines())
    picture.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
