"""Train a language model on one rank or many; an interrupted run resumes to the same numbers."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from statemix.config.lm import Execution, LMRunConfig
from statemix.data import TokenData
from statemix.lm.checkpoint import Store
from statemix.lm.claim import claimed
from statemix.lm.measure import Quality, measure_quality
from statemix.lm.ranks import Ranks
from statemix.lm.result import LMResult, StepReport, ValidationReport, resume_metrics
from statemix.lm.saved import CONFIG as MODEL
from statemix.lm.saved import save_model
from statemix.lm.step import LMRun, has_finite_weights, start, train_step
from statemix.models.lm import count_parameters
from statemix.optim.muon import is_sharded
from statemix.runs.layout import CHECKPOINTS, FINAL, RESULT
from statemix.runs.metrics import Metrics
from statemix.runs.result import read_result, write_result

__all__ = ["Observer", "train_lm"]

Observer = Callable[[LMRun, StepReport | ValidationReport], None]


def train_lm(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    directory: Path,
    ranks: Ranks,
    observer: Observer | None = None,
) -> LMResult:
    """Train in `directory`, resuming from its newest checkpoint if any; return the result."""
    finished = read_result(LMResult, directory, config.id)
    if finished is not None and (directory / FINAL / MODEL).is_file():
        return finished
    run = start(config, execution, data, ranks)
    with claimed(directory, config, ranks):
        store = Store(directory / CHECKPOINTS, ranks.saving, execution.keep)
        metrics = _resume(run, store, directory)

        def report(news: StepReport | ValidationReport) -> None:
            metrics.append(news)
            if observer is not None:
                observer(run, news)

        _train_to_the_end(run, store, report)
        quality = _validate(run)
        report(_validation_report(run, quality))
        return _finish(run, data, directory, quality)


def _resume(run: LMRun, store: Store, directory: Path) -> Metrics:
    """Load the newest checkpoint, if there is one; return the metrics up to it."""
    checkpoint = store.newest()
    if checkpoint is None and (directory / RESULT).is_file():
        raise ValueError(
            f"The run in {directory} is finished, but {FINAL}/ is missing, and there is no "
            f"checkpoint to restore it from. Delete {directory / RESULT} to train again."
        )
    if checkpoint is not None:
        state = store.load(checkpoint, run.scored, run.optimiser, run.config.id)
        run.step = state.step
        run.seconds = state.seconds
        if not has_finite_weights(run):
            raise FloatingPointError(
                f"The checkpoint {checkpoint} has weights that are not finite. Delete it to resume "
                "from the one before it."
            )
    writes = run.ranks.rank == 0
    metrics, run.last_loss = resume_metrics(directory, run.step, run.config.steps, writes=writes)
    return metrics


def _train_to_the_end(
    run: LMRun, store: Store, report: Callable[[StepReport | ValidationReport], None]
) -> None:
    """Run the remaining steps, with validations and checkpoints in between."""
    execution = run.execution
    steps = run.config.steps
    try:
        while run.step < steps:
            report(train_step(run))
            due = execution.validate_every and run.step % execution.validate_every == 0
            if due and run.step < steps:
                report(_validation_report(run, _validate(run)))
            if run.step % execution.save_every == 0 or run.step == steps:
                _save(run, store)
    except FloatingPointError as error:
        store.wait()
        newest = store.newest() or "none: no step was saved yet"
        raise FloatingPointError(f"{error} The last good checkpoint is {newest}.") from None
    store.wait()


def _save(run: LMRun, store: Store) -> None:
    """Start to write a checkpoint, unless the weights are not finite."""
    if not has_finite_weights(run):
        raise FloatingPointError(f"The weights are not finite after step {run.step}. Lower --lr.")
    state = {"step": run.step, "seconds": run.seconds, "config": run.config.id}
    store.save(run.scored, run.optimiser, state)


def _validate(run: LMRun) -> Quality:
    """Evaluate on the held-out text."""
    return measure_quality(
        run.scored,
        run.validation_split,
        run.ranks,
        length=run.config.length,
        batch=max(1, run.config.batch // (run.ranks.rows * run.execution.accumulate)),
        limit=run.execution.validation_tokens,
        reset=run.config.reset,
        bf16=run.config.bf16,
    )


def _validation_report(run: LMRun, quality: Quality) -> ValidationReport:
    return ValidationReport(run.step, quality.loss, quality.perplexity, quality.bits_per_byte)


def _finish(run: LMRun, data: TokenData, directory: Path, quality: Quality) -> LMResult:
    """Write the trained model and the result."""
    config = run.config
    tensors = _full_tensors(run.scored.model)
    result = LMResult(
        id=config.id,
        steps=run.step,
        tokens=run.step * config.tokens,
        parameters=count_parameters(config.model),
        loss=run.last_loss,
        validation_loss=quality.loss,
        perplexity=quality.perplexity,
        bits_per_byte=quality.bits_per_byte,
        seconds=run.seconds,
    )
    if run.ranks.rank == 0:
        about: dict[str, Any] = {
            "train_length": config.length,
            "end_of_text": data.meta.eot,
            "run": config.id,
            "data": data.meta.source,
            **asdict(quality),
        }
        final = directory / FINAL
        tokenizer = data.tokenizer
        save_model(final, config.model, tensors, tokenizer=tokenizer, about=about, replace=True)
        write_result(directory, result)
    return result


def _full_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight on the CPU, gathered from the ranks that hold its shards."""
    return {
        name: (x.full_tensor() if is_sharded(x) else x).detach().cpu()
        for name, x in model.state_dict().items()
    }
