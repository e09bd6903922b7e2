"""What `statemix report` prints and writes: tables, figures and the page."""

from pathlib import Path

import statemix
from statemix.commands.views.console import warn
from statemix.extras import install_command
from statemix.files.writing import write_atomically
from statemix.paper import read_values
from statemix.report.certified import CERTIFIED, certified_table
from statemix.report.documents import update_document
from statemix.report.figures import make_figures
from statemix.report.gather import Neighbour, Place, gather, neighbours
from statemix.report.language import LANGUAGE, PANELS, language_figure, read_language
from statemix.report.minutes import MINUTES, minutes_table
from statemix.report.page import write_report_page
from statemix.report.precision import PRECISION, precision_table
from statemix.report.stories import STORIES, stories_figure, stories_table
from statemix.report.tables import agreement, comma_separated, coverage, grids, latex, markdown
from statemix.report.throughput import throughput_figure
from statemix.sweep import Ledger

__all__ = ["collect", "find_experiments", "print_coverage", "update_documents", "write_report"]


def find_experiments() -> Path:
    """The experiments in this directory, or those of the paper that wheels contain."""
    here = Path("experiments")
    installed = Path(statemix.__file__).parent / here
    return installed if installed.is_dir() and not here.is_dir() else here


_OTHERS = {  # regions of documents: the experiment, and the function that renders its table
    "certified models": (CERTIFIED, certified_table),
    "equal minutes": (MINUTES, minutes_table),
    "stories": (STORIES, stories_table),
    "precision": (PRECISION, precision_table),
}


def collect(experiments: Path, ledger: Path) -> tuple[list[Place], list[Neighbour]]:
    """The places of all experiments, and the paper's values with ours; warn of damaged lines."""
    files = sorted(path for path in experiments.glob("*.py") if "def cells" in path.read_text())
    files.sort(key=lambda path: not path.stem.startswith("table"))
    if not files:
        raise FileNotFoundError(
            f"There are no experiments in {experiments}. Give a directory of experiments with "
            "--experiments."
        )
    if not ledger.is_file():
        raise FileNotFoundError(
            f"There is no ledger {ledger}. Run `statemix sweep` first, or give one with --ledger: "
            "the repository and the source distribution have results/ledger.jsonl."
        )
    places, complaints = gather(files, Ledger(ledger))
    for complaint in complaints:
        warn(complaint)
    return places, neighbours(places, read_values())


def print_coverage(experiments: Path, ledger: Path) -> None:
    """Print how many of the paper's values are measured, and how many agree."""
    _, found = collect(experiments, ledger)
    print(coverage(found))


def update_documents(experiments: Path, ledger: Path, documents: tuple[Path, ...]) -> None:
    """Update the tables inside Markdown files."""
    places, found = collect(experiments, ledger)
    runs = read_language(experiments / LANGUAGE, ledger)
    others = {
        name: table(experiments / file, ledger)
        for name, (file, table) in _OTHERS.items()
        if (experiments / file).is_file()
    }
    for path in documents:
        update_document(path, places, found, runs, others)


def write_report(experiments: Path, ledger: Path, bench: Path, out: Path) -> None:
    """Write tables, figures and the page to `out`."""
    places, found = collect(experiments, ledger)
    runs = read_language(experiments / LANGUAGE, ledger)
    out.mkdir(parents=True, exist_ok=True)
    for name, grid in grids(found).items():
        write_atomically(out / f"{name}.md", markdown(grid).encode())
        write_atomically(out / f"{name}.tex", latex(grid).encode())
    if runs:
        write_atomically(
            out / "language.md", "\n".join(panel(runs) for panel in PANELS.values()).encode()
        )
    write_atomically(out / "values.csv", comma_separated(found).encode())
    figures = make_figures(places)
    stories = stories_figure(experiments / STORIES, ledger)
    others = (throughput_figure(bench), language_figure(runs), stories)
    figures += [each for each in others if each]
    write_report_page(out / "index.html", places, found, figures)
    try:
        from statemix.report.drawing import save_figure
    except ImportError as error:
        raise SystemExit(
            f"statemix: figures need matplotlib. Install it with: {install_command('plot')}"
        ) from error
    drawn = [path for figure in figures for path in save_figure(figure, out)]
    print(f"{len(grids(found))} tables, {len(drawn)} figures and index.html are in {out}.")
    print(agreement(found))
