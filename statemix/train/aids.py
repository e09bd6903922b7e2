"""Training aids: curriculum, restarts, the decay with sharper or hard gates, and final checks."""

from dataclasses import replace

from torch import nn

from statemix.config.task import RunConfig
from statemix.layers.unit import LinearRecurrentUnit
from statemix.proof import prove
from statemix.train.metrics import all_end_right
from statemix.train.state import Counters, Run, harden, is_hard, restart

__all__ = ["advance", "holds", "judge", "prefix_length", "sharpen"]

WATCHED_STEPS = 25  # the training accuracy is averaged, and looked at, over this many steps
_STAGE_LEARNED = 0.9  # accuracy at the last position that ends a curriculum stage
_WORDS_LEARNED = 0.95  # accuracy that ends a stage of words
_SEQUENCES_LEARNED = 0.99  # accuracy that starts the decay
_SOLVED = 0.9999  # accuracy with which the decay may end the run


def prefix_length(run: Run) -> int:
    """The length of the sequences in the present curriculum stage."""
    if not _in_stage(run.counters, run.config):
        return run.length
    return min(run.length, run.config.curriculum[run.counters.stage])


def _in_stage(counters: Counters, config: RunConfig) -> bool:
    return counters.stage < len(config.curriculum)


def _asks_last(counters: Counters, config: RunConfig) -> bool:
    """True if the stage is learned once its last position is; words end at several positions."""
    return _in_stage(counters, config) and config.stages == "prefixes"


def advance(run: Run, accuracy: float, last: float) -> None:
    """Count a step; every `WATCHED_STEPS`, move to the next stage, decay, stop or restart if due.

    Args:
        accuracy: of all scored positions in the batch.
        last: of the last position in the batch.
    """
    config = run.config
    counters = run.counters
    if counters.decay_step >= 0 and config.sharpen > 1.0:
        sharpen(run.model, config.sharpen)
    counters = replace(
        counters,
        step=counters.step + 1,
        attempt_step=counters.attempt_step + 1,
        stage_step=counters.stage_step + 1,
        decay_step=counters.decay_step + (counters.decay_step >= 0),
        hits=counters.hits + (last if _asks_last(counters, config) else accuracy),
    )
    run.counters = counters
    if counters.attempt_step % WATCHED_STEPS:
        return
    judged = judge(config, counters, counters.hits / WATCHED_STEPS)
    if judged.ended and not (holds(run) and _is_proved(run)):
        judged = _next_attempt(judged)
    run.counters = replace(judged, hits=0.0)
    if is_hard(run.counters, config) and not is_hard(counters, config):
        harden(run.model)
    if judged.attempt > counters.attempt:
        restart(run)


def judge(config: RunConfig, counters: Counters, accuracy: float) -> Counters:
    """The counters after the mean `accuracy` of the last steps has been judged.

    In a stage of prefixes the accuracy is that of the last position, otherwise of all positions.
    """
    if counters.decay_step >= 0:
        if counters.decay_step < config.decay or not config.decay:
            return counters
        return replace(counters, ended=True) if accuracy >= _SOLVED else _next_attempt(counters)
    if _in_stage(counters, config):
        learned = accuracy > (_STAGE_LEARNED if _asks_last(counters, config) else _WORDS_LEARNED)
        if learned or 0 < config.stage_steps <= counters.stage_step:
            return replace(counters, stage=counters.stage + 1, stage_step=0)
    elif accuracy > _SEQUENCES_LEARNED:
        return replace(counters, decay_step=0)
    warmup = config.warmup_steps(config.total_steps) if counters.stage == 0 else 0
    too_long = 0 < config.restart_after <= counters.stage_step - warmup
    return _next_attempt(counters) if too_long else counters


def _next_attempt(counters: Counters) -> Counters:
    """The first step of the next attempt."""
    return replace(
        counters,
        attempt=counters.attempt + 1,
        attempt_step=0,
        stage=0,
        stage_step=0,
        decay_step=-1,
        ended=False,
    )


def holds(run: Run) -> bool:
    """True if the final answer of every held-out longer sequence is right, or there are none."""
    return not run.config.hold or all_end_right(run.model, run.data["hold"])


def _is_proved(run: Run) -> bool:
    """True if the model is proved right at every length, or the run asks for no proof."""
    if not run.config.certify:
        return True
    assert run.task.automaton is not None
    run.proof = prove(run.model, run.task.automaton)
    return run.proof.certificate.holds


def sharpen(model: nn.Module, factor: float) -> None:
    """Multiply the raw gates of every recurrent unit by `factor`."""
    for module in model.modules():
        if isinstance(module, LinearRecurrentUnit):
            module.sharpen(factor)
