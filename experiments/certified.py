"""Models that are automata: trained with `automaton_preset`, and proved right at every length.

Fresh seeds, none of which was used for tuning. `measure` certifies each run: as it is after the
blocks that carry no function of the task's state are removed or, if that is not enough, with a
readout that is trained on all pairs of a state and a letter.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.proof.prove import prove
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, automaton_preset

BLOCK_SIZES = {"s3": 3, "s4": 4, "a5": 5, "z5": 5, "s5": 5}
ANSWERED = {"parity": 2, "cycle_nav": 5, "even_pairs": 2}  # with answers of all prefixes
SEEDS = range(800, 805)
MORE = range(805, 820)


def cell(task: str, m: int, seed: int) -> Cell:
    model = ModelConfig(options={"n_blocks": 32, "block_size": m})
    options = {"answers": "prefixes"} if task in ANSWERED else {}
    config = RunConfig(task, model, task_options=options, train_examples=100_000, seed=seed)
    return Cell(f"BD-LRU m{m}", task, "automaton", automaton_preset(config))


def cells() -> Iterator[Cell]:
    for task, m in (BLOCK_SIZES | ANSWERED).items():
        yield from (cell(task, m, seed) for seed in SEEDS)
    yield from (cell("s5", 5, seed) for seed in MORE)


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """The certificate, and whether the readout had to be trained again for it."""
    assert task.automaton is not None
    proof = prove(model, task.automaton)
    return {**asdict(proof.certificate), "refitted": proof.way == "refitted"}
