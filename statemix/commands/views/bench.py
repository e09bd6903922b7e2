"""What `statemix bench` prints: a table for each part; the rows go to a JSON lines file too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from rich.table import Table

from statemix.bench import decode, error, gpu, memory, speed
from statemix.bench.config import DecodeConfig, ErrorConfig, MemoryConfig, SpeedConfig
from statemix.bench.measure import Row, append, check_writable
from statemix.commands.views.console import make_console, make_progress

__all__ = ["print_decode", "print_error", "print_memory", "print_speed"]

_TITLES = {
    "kernel": "kernels relative to a loop that moves the same bytes",
    "scan": "gated_block_scan, forward + backward, and others relative to it",
    "layer": "a layer, forward + backward, and others relative to it",
    "threads": "the scan with several threads, relative to one thread",
    "length": "the scan at equal B · T, relative to the shortest sequences",
    "step": "a training step of a small model, with our scan and others",
    "lm": "an optimiser step of language models of the same size",
    "throughput": "the paper's figure: by block size, by length, and for layers of the same size",
    "gates": "scans and layers with hard gates, relative to softmax",
}


def print_speed(config: SpeedConfig, out: Path | None) -> None:
    """Print a table for each part; append rows to `out` as they are measured."""
    check_writable(out)
    if config.device == "cuda":
        config = gpu.checked(config)
    dtype = config.dtype if config.device == "cuda" else "float32"  # on a CPU, autocast casts
    with gpu.defaults(config.device, dtype):
        for part in config.parts:
            rows: list[Row] = []
            bandwidths: list[Row] = []
            with _measuring(part) as observe:
                for result, moved in speed.results(config, part):
                    observe(f"{result[0].setting} done")
                    reached = gpu.bandwidth_rows(result, moved) if moved else []
                    append(result + reached, out)
                    rows += result
                    bandwidths += reached
            _show(_TITLES[part], rows)
            if bandwidths:
                _show("bandwidth reached", bandwidths)


def print_memory(config: MemoryConfig, out: Path | None) -> None:
    """Print the peak memory of both layers, with gates stored or recomputed."""
    check_writable(out)
    with _measuring("memory") as observe:
        rows = memory.measure_all(config, observe)
    _report("peak memory beyond the input, forward + backward", rows, out)


def print_error(config: ErrorConfig, out: Path | None) -> None:
    """Print the errors of the scans at every size, relative to float64."""
    check_writable(out)
    with _measuring("errors") as observe:
        rows = error.compare_all(config, observe)
    _report("error relative to float64", rows, out)
    _report("saturated permutations must be exact", [error.permutation_row(config)], out)


def print_decode(config: DecodeConfig, out: Path | None) -> None:
    """Print the time and memory of every preset at each position."""
    check_writable(out)
    times: list[Row] = []
    peaks: list[Row] = []
    rivals: list[Row] = []
    with _measuring("decoding") as observe:
        for preset in config.presets:
            observe(preset)
            preset_times, preset_peaks = decode.measure(preset, config)
            times += preset_times
            peaks += preset_peaks
        for size, batch in product(config.rivals, config.batches):
            observe(f"models of size {size}, B = {batch}")
            rivals += decode.measure_rivals(size, batch, config)
    tables = {
        "time from each position": times,
        "peak resident memory up to each position": peaks,
        "models of other packages": rivals,
    }
    for title, rows in tables.items():
        if rows:
            _report(title, rows, out)


@contextmanager
def _measuring(part: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being measured, and a function that updates it."""
    with make_progress() as progress:
        task = progress.add_task(f"measuring {part}")
        yield lambda what: progress.update(task, description=f"measuring {part}: {what}")


def _report(title: str, rows: list[Row], out: Path | None) -> None:
    """Print a table, and append its rows to `out`."""
    _show(title, rows)
    append(rows, out)


def _show(title: str, rows: list[Row]) -> None:
    unit = rows[0].unit if rows else ""
    table = Table("setting", "entrant", "threads", unit, "ratio", "relative to", title=title)
    table.title_justify = "left"
    last = None
    for row in rows:
        setting = (row.setting, row.threads)
        bound = "" if row.rounds else "> "
        table.add_row(
            row.setting if setting != last else "",
            row.entrant,
            str(row.threads),
            f"{bound}{row.value:.4g}",
            f"{bound}{row.ratio:.3g}",
            row.reference,
        )
        last = setting
    make_console().print(table)
