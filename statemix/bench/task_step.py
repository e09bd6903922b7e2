"""Training steps of tasks with the preset `mad`, in float32 and in bfloat16.

The first layer looks its gates up: they are computed once per token, or per token and position.
"""

from collections.abc import Iterator
from dataclasses import replace

from statemix.bench.measure import Contest
from statemix.bench.rivals import Entrant
from statemix.config.model import ModelConfig
from statemix.config.presets import mad_preset
from statemix.config.task import RunConfig
from statemix.train.loop import train_step
from statemix.train.state import start_run

__all__ = ["task_contests"]

_STATES = 512
_PLACES = (("copy", 4), ("copy", 16), ("compress", 4), ("compress", 16))


def task_contests(length: int = 64) -> Iterator[Contest]:
    """Forward, backward, clipping and Muon, relative to float32."""
    for task, m in _PLACES:
        options = {"n_blocks": _STATES // m, "block_size": m}
        placed = {"placement": "mad"} if task == "copy" else {}
        data = RunConfig(task, ModelConfig(options=options), task_options=placed, length=length)
        config = mad_preset(data)
        config = replace(config, train_examples=8 * config.batch)
        entrants = {
            name: _step(replace(config, bf16=name == "bf16")) for name in ("float32", "bf16")
        }
        setting = (
            f"{task}, m = {m}, {_STATES} states, width {config.model.width}, "
            f"B = {config.batch}, T = {length}"
        )
        yield Contest("step", setting, "float32", entrants)


def _step(config: RunConfig) -> Entrant:
    run = start_run(config)
    return lambda: train_step(run)
