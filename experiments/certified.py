"""Models that are automata: trained with hard gates, and proved right at every length.

Fresh seeds, none of which was used for tuning. With the recipe `restarts`, which is
`tracking_preset`, training restarts if the proof fails, so that a run without a certificate ran
out of steps. With `one attempt`, a model is proved once, after training. `softmax` is
`sharpened_preset`, whose gates are sharpened and whose model is not proved; its runs on S5
alternate with those of `restarts`. `measure` runs the trained model, before blocks are removed, on
words up to 25 times longer than those it was trained on.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, sharpened_preset, tracking_preset
from statemix.train.metrics import accuracy_by_length

BLOCK_SIZES = {"s3": 3, "s4": 4, "a5": 5, "z5": 5, "s5": 5}
ANSWERED = {"parity": 2, "cycle_nav": 5, "even_pairs": 2}  # one answer, at the end of a word
SEEDS = range(800, 805)
MORE = range(805, 820)
LENGTHS = (41, 101, 151, 201, 255, 1025)


def cell(task: str, m: int, seed: int) -> Cell:
    model = ModelConfig(options={"n_blocks": 32, "block_size": m})
    config = RunConfig(task, model, train_examples=100_000, seed=seed)
    return Cell(f"BD-LRU m{m}", task, "restarts", tracking_preset(config))


def softmax(task: str, m: int, seed: int) -> Cell:
    """The preset `sharpened`, to compare the CPU time with."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": m})
    config = RunConfig(task, model, train_examples=100_000, seed=seed)
    return Cell(f"BD-LRU m{m}", task, "softmax", sharpened_preset(config))


def attempt(task: str, m: int, seed: int) -> Cell:
    """Softmax until learned, then hard, with answers of all prefixes where there is one a word."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": m})
    options = {"answers": "prefixes"} if task in ANSWERED else {}
    config = RunConfig(task, model, task_options=options, train_examples=100_000, seed=seed)
    column = f"{task}, answers of all prefixes" if options else task
    hard = replace(sharpened_preset(config), sharpen=1.0, harden=True)
    return Cell(f"BD-LRU m{m}", column, "one attempt", hard)


def arithmetic(answers: str, seed: int) -> Cell:
    """Two layers; `answers` are those of all prefixes, or one answer a word."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": 5}, layers=2)
    options = {"answers": answers}
    config = RunConfig("mod_arith", model, task_options=options, train_examples=200_000, seed=seed)
    column = "mod_arith" if answers == "end" else "mod_arith, answers of all prefixes"
    return Cell("BD-LRU m5, two layers", column, "restarts", tracking_preset(config))


def cells() -> Iterator[Cell]:
    for seed in (*SEEDS, *MORE):
        yield cell("s5", 5, seed)
        yield softmax("s5", 5, seed)
    for task, m in (BLOCK_SIZES | ANSWERED).items():
        if task != "s5":
            yield from (cell(task, m, seed) for seed in SEEDS)
    for task, m in (BLOCK_SIZES | ANSWERED).items():
        yield from (attempt(task, m, seed) for seed in SEEDS)
    yield from (attempt("s5", 5, seed) for seed in MORE)
    for answers in ("prefixes", "end"):
        yield from (arithmetic(answers, seed) for seed in SEEDS)


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """Accuracy of the trained model at each length."""
    return {"by_length": accuracy_by_length(task, model, LENGTHS, 64, config.seed)}
