"""Which small language model is best after the same minutes of training?

    statemix lm prepare sotu --out data/sotu --vocab 1024 --validation 0.05
    python experiments/equal_minutes.py                      # time every model (a minute)
    statemix sweep experiments/equal_minutes.py --scale paper    # rates; again for the seeds
    statemix sweep experiments/equal_minutes.py              # a short protocol

Every model reads the same text in the same batches and stops after the same minutes of one core:
the script times a training step of each model, and a run has as many steps as fit. Minutes are
those of the processor, so that other programs on the machine change nothing. Learning rates are
tried in short runs; the best of them trains several seeds. The sample text has four million tokens,
more than any model reads in that time.

    scale     rates  minutes of a trial  minutes of a run  seeds  models of eight million parameters
    laptop        2                 0.5                 1      2  none
    paper         3                   3                10      3  30 minutes, one seed

Models of eight million parameters take the rate of the one with two million.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.models import LanguageModel, find_preset, next_token_loss
from statemix.sweep import Cell, Ledger

TEXT = "5cea3e064435b13c"  # digest of data/sotu, prepared as above
VOCABULARY = 1024
LENGTH = 256
BATCH = 4
TIMES = Path(__file__).parent.parent / "results" / "bench" / "equal_minutes.jsonl"
LEDGER = Path(__file__).parent.parent / "results" / "ledger.jsonl"
MODELS = (
    "bdlru-m1",
    "bdlru-m2",
    "bdlru-m4",
    "bdlru-m8",
    "bdlru-m4-conv-gate",
    "bdlru-m8-rank32",
    "hlru-m2",
    "hybrid",
    "attention",
    "lstm",
    "mamba2",
)
LARGE = ("bdlru-m4", "hybrid", "attention", "lstm")
MATRIX_RATE = 5  # Muon's learning rate for matrices, as a multiple of the learning rate
_ROUNDS = 9


@dataclass(frozen=True)
class Protocol:
    """Learning rates to try, and the CPU minutes of trials, runs, and runs of large models."""

    rates: tuple[float, ...]
    trial: float
    full: float
    seeds: int
    long: float  # 0: no large models


PROTOCOLS = {
    "laptop": Protocol((4e-3, 8e-3), 0.5, 1, 2, 0),
    "paper": Protocol((4e-3, 8e-3, 1.6e-2), 3, 10, 3, 30),
}


def models() -> dict[str, LMConfig]:
    """Every model by name: those of two million parameters, then those of eight."""
    small = {f"2m-{name}": replace(find_preset(f"2m-{name}"), vocab=VOCABULARY) for name in MODELS}
    wide = LMConfig(VOCABULARY, 256, 8, "bdlru", {"n_blocks": 57, "block_size": 4})
    pattern = ("bdlru", "bdlru", "bdlru", "attention")
    sizes = {"n_blocks": 64, "block_size": 4}
    large = {
        "8m-bdlru-m4": wide,
        "8m-hybrid": replace(wide, options=sizes, mixers=pattern),
        "8m-attention": replace(wide, mixer="attention", options={}, inner=880),
        "8m-lstm": replace(wide, mixer="lstm", options={"hidden": 198}),
    }
    return {**small, **large}


def cells(scale: str) -> Iterator[Cell]:
    """The trials of all rates, and the long runs at the best rate of models whose trials ended."""
    protocol = PROTOCOLS[scale]
    seconds = read_times()
    results = {e.id: e.result for e in Ledger(LEDGER).read()[0] if e.result is not None}
    rates = {}
    for name, model in models().items():
        if name in seconds and name.startswith("2m"):
            trials = [run_of(model, seconds[name], protocol.trial, lr, 0) for lr in protocol.rates]
            yield from (_cell(name, protocol.trial, f"lr {t.lr:g}", t) for t in trials)
            if all(trial.id in results for trial in trials):
                best = min(trials, key=lambda trial: results[trial.id]["bits_per_byte"])
                rates[name] = best.lr
    for name, lr in rates.items():
        for seed in range(protocol.seeds):
            config = run_of(models()[name], seconds[name], protocol.full, lr, seed)
            yield _cell(name, protocol.full, "best rate", config)
    for name in (f"8m-{name}" for name in LARGE if protocol.long):
        lr = rates.get(name.replace("8m", "2m"))
        if lr is not None and name in seconds:
            config = run_of(models()[name], seconds[name], protocol.long, lr, 0)
            yield _cell(name, protocol.long, "best rate", config)


def _cell(name: str, minutes: float, recipe: str, config: LMRunConfig) -> Cell:
    return Cell(name, f"{minutes:g} min", recipe, config)


def run_of(model: LMConfig, seconds: float, minutes: float, lr: float, seed: int) -> LMRunConfig:
    """A run with as many steps as fit into the minutes, at `seconds` per step."""
    return LMRunConfig(
        model,
        TEXT,
        length=LENGTH,
        batch=BATCH,
        steps=int(60 * minutes / seconds),
        lr=lr,
        matrix_lr=MATRIX_RATE * lr,
        warmup=0.1,
        seed=seed,
    )


def read_times() -> dict[str, float]:
    """CPU seconds of a training step by model; empty before they are measured."""
    if not TIMES.is_file():
        return {}
    lines = [json.loads(line) for line in TIMES.read_text().splitlines()]
    return {line["model"]: line["step_seconds"] for line in lines}


def measure_times() -> None:
    """Time all models on one thread, in turns; write the medians."""
    from statemix.optim import make_optimiser

    torch.set_num_threads(1)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    runs = {}
    for name, config in models().items():
        model = LanguageModel(config)
        optimiser = make_optimiser(model, run_of(config, 1.0, 1, 4e-3, 0))
        runs[name] = model, optimiser
    steps: dict[str, list[float]] = {name: [] for name in runs}
    decoding: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, (model, optimiser) in runs.items():
            steps[name].append(_time_step(model, optimiser, tokens))
            decoding[name].append(_time_decoding(model, tokens))
    TIMES.parent.mkdir(parents=True, exist_ok=True)
    with TIMES.open("w") as file:
        for name, (model, _) in runs.items():
            line = {
                "model": name,
                "parameters": sum(p.numel() for p in model.parameters()),
                "step_seconds": sorted(steps[name])[_ROUNDS // 2],
                "step_tokens": BATCH * LENGTH,
                "decoding_seconds": sorted(decoding[name])[_ROUNDS // 2],
                "torch": torch.__version__,
            }
            file.write(json.dumps(line) + "\n")
            print(name, f"{BATCH * LENGTH / line['step_seconds']:,.0f} tokens/s")


def _time_step(
    model: LanguageModel, optimiser: torch.optim.Optimizer, tokens: torch.Tensor
) -> float:
    """CPU seconds of a training step."""
    started = time.process_time()
    x, _ = model.features(tokens[:, :-1])
    next_token_loss(x, model.head.weight, tokens[:, 1:]).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return time.process_time() - started


@torch.inference_mode()
def _time_decoding(model: LanguageModel, tokens: torch.Tensor) -> float:
    """CPU seconds of a decoded token after a prompt of `LENGTH` tokens, averaged over eight."""
    _, states = model.features(tokens[:1, :LENGTH])
    started = time.process_time()
    for t in range(8):
        _, states = model.step(tokens[:1, t], states)
    return (time.process_time() - started) / 8


if __name__ == "__main__":
    measure_times()
