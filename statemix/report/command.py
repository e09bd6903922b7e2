"""What `statemix report` does."""

from pathlib import Path

from rich.console import Console

from statemix.paper import read_values
from statemix.report.documents import update_document
from statemix.report.gather import Neighbour, Place, gather, neighbours
from statemix.report.language import PANELS, draw_language, read_language
from statemix.report.page import write_report_page
from statemix.report.tables import comma_separated, coverage, grids, latex, markdown
from statemix.runs.files import write_atomically
from statemix.sweep import Ledger

ERRORS = Console(stderr=True)


def collect(experiments: Path, ledger: Path) -> tuple[list[Place], list[Neighbour]]:
    """Places and the paper's numbers beside ours; damaged lines of the ledger are complained of."""
    files = sorted(path for path in experiments.glob("*.py") if "def cells" in path.read_text())
    files.sort(key=lambda path: not path.stem.startswith("table"))
    if not files:
        raise FileNotFoundError(
            f"There are no experiments in {experiments}. Run this in a clone, or name a directory with --experiments."
        )
    if not ledger.is_file():
        raise FileNotFoundError(
            f"There is no ledger {ledger}. Run `statemix sweep` first, or name one with --ledger."
        )
    places, complaints = gather(files, Ledger(ledger))
    for complaint in complaints:
        ERRORS.print(complaint, markup=False, style="yellow")
    return places, neighbours(places, read_values())


def print_coverage(experiments: Path, ledger: Path) -> None:
    _, found = collect(experiments, ledger)
    print(coverage(found))


def update_documents(
    experiments: Path, ledger: Path, language: Path, documents: tuple[Path, ...]
) -> None:
    places, found = collect(experiments, ledger)
    runs = read_language(language)
    for path in documents:
        update_document(path, places, found, runs)


def write_report(experiments: Path, ledger: Path, bench: Path, language: Path, out: Path) -> None:
    """Tables, figures and the page."""
    places, found = collect(experiments, ledger)
    runs = read_language(language)
    out.mkdir(parents=True, exist_ok=True)
    for name, grid in grids(found).items():
        write_atomically(out / f"{name}.md", markdown(grid).encode())
        write_atomically(out / f"{name}.tex", latex(grid).encode())
    if runs:
        write_atomically(
            out / "language.md", "\n".join(panel(runs) for panel in PANELS.values()).encode()
        )
    write_atomically(out / "values.csv", comma_separated(found).encode())
    summary = coverage(found).splitlines()[-1]
    try:
        from statemix.report.figures import draw_figures, draw_throughput
    except ImportError as error:
        write_report_page(out / "index.html", places, found, summary, [])
        raise SystemExit(
            "statemix: figures need matplotlib. Install it with: pip install 'statemix[plot]'"
        ) from error
    drawn = draw_figures(places, out) + draw_throughput(bench, out) + draw_language(runs, out)
    write_report_page(out / "index.html", places, found, summary, drawn)
    print(f"{len(grids(found))} tables, {len(drawn)} figures and index.html are in {out}.")
    print(summary)
