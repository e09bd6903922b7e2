"""One training recipe for each family of mixers, found alike: successive halving on copying.

Every family has the same eight settings of optimiser, rate, schedule and size, on the first
configuration of table_mad with as many steps as the column says. The four that validate best after
1,000 steps are run to 2,000, and the two best of these to 4,000: a cell of a longer column exists
once all runs of the shorter one are in results/ledger.jsonl, so repeat the sweep until nothing is
missing. Rows with blocks or orders are searched at m = 4.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, hlru, with_row
from statemix.sweep import Cell, Ledger
from statemix.train import RunConfig, mad_preset

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
FAMILIES = (bdlru(4), hlru(4), *BASELINES)
RUNGS = (1000, 2000, 4000)


@dataclass(frozen=True)
class Setting:
    """What is searched: an optimiser with its rates, a schedule, and a size."""

    name: str
    optimiser: str = "muon"
    lr: float = 2e-3
    matrix_lr: float = 0.01
    cooldown: float = 0.3
    size: float = 1.0


SETTINGS = (
    Setting("Muon .01"),
    Setting("Muon .02", matrix_lr=0.02),
    Setting("Muon .005", matrix_lr=0.005),
    Setting("Muon .01, cosine", cooldown=0.0),
    Setting("Muon .01, twice the size", size=2.0),
    Setting("AdamW 2e-3", "adamw"),
    Setting("AdamW 5e-3", "adamw", lr=5e-3),
    Setting("AdamW 2e-3, twice the size", "adamw", size=2.0),
)


def sized(row: str, size: float) -> ModelConfig:
    """The row with its usual size in table_mad, times `size`."""
    if row in BASELINES[1:]:
        model = with_row(ModelConfig(), row, 0)
        name = "expand" if row == "Mamba2" else "heads"
        usual = model.options.get(name, 2)
        form = {} if row == "Mamba2" else {"form": "fla"}
        return replace(model, options={**model.options, **form, name: round(usual * size)})
    states = {bdlru(4): 512, hlru(4): 1024, "LSTM": 256}[row]
    return with_row(ModelConfig(), row, round(states * size))


def cell(row: str, setting: Setting, steps: int) -> Cell:
    """A run of `steps` steps with the schedule scaled to them."""
    options = {"placement": "mad"}
    data = RunConfig("copy", sized(row, setting.size), task_options=options, length=64)
    config = mad_preset(data)
    config = replace(
        config,
        optimiser=setting.optimiser,
        lr=setting.lr,
        matrix_lr=setting.matrix_lr,
        cooldown=setting.cooldown,
        max_steps=steps,
        epochs=-(-steps // config.steps_per_epoch),
    )
    return Cell(row, f"{steps} steps", setting.name, config)


def cells() -> Iterator[Cell]:
    """All settings at the first rung, and the better half of each rung at the next."""
    entries, _ = Ledger(LEDGER).read() if LEDGER.exists() else ([], [])
    scores = {
        entry.id: entry.result["validation"]["token"]
        for entry in entries
        if entry.status == "done" and entry.result is not None and "task" in entry.config
    }
    for row in FAMILIES:
        settings = list(SETTINGS)
        for steps in RUNGS:
            rung = {setting: cell(row, setting, steps) for setting in settings}
            yield from rung.values()
            if any(each.config.id not in scores for each in rung.values()):
                break
            best = sorted(settings, key=lambda s: -scores[rung[s].config.id])
            settings = best[: len(best) // 2]
