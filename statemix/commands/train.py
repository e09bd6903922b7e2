"""`statemix train`: the options of one run."""

import json
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from statemix.commands.check import check_positive
from statemix.commands.options import flags, given_options, option_fields
from statemix.config.model import SIZES, ModelConfig
from statemix.config.presets import (
    mad_preset,
    paper_protocol,
    paper_sizes,
    sharpened_preset,
    tracking_preset,
)
from statemix.config.task import Aids, RunConfig

__all__ = ["Tracker", "Train", "read_options"]

_PRESETS = {
    "tracking": tracking_preset,
    "sharpened": sharpened_preset,
    "mad": mad_preset,
}
Tracker = Literal["none", "wandb", "tensorboard", "trackio"]


def read_options(pairs: tuple[str, ...], flag: str) -> dict[str, Any]:
    """Parse key=value pairs; a value is JSON, True, False, or else text."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise SystemExit(f"statemix: {flag} takes key=value, got {pair!r}.")
        try:
            options[key] = json.loads(text)
        except json.JSONDecodeError:
            options[key] = {"True": True, "False": False}.get(text, text)
    return options


@dataclass(frozen=True)
class _TrainOptions:
    """Options of `statemix train` that are not fields of a config."""

    task: tyro.conf.Positional[str]
    """One of the tasks above, or a task that a file given with --files registers."""
    preset: Literal["none", "tracking", "sharpened", "mad"] = "none"
    """tracking: aids and a learning rate for state tracking, and gates that only copy in the end:
    the run ends when the model is proved right at every length. sharpened: the same aids with soft
    gates and no proof. mad: width, start, steps and schedule for compress, copy and recall. Your
    own options take precedence."""
    blocks: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 32)")] = None
    """Number of blocks of bdlru, or of channels of hlru."""
    block_size: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 4)")] = None
    """Block size m of bdlru, or order m of hlru."""
    options: tuple[str, ...] = ()
    """More options of the mixer, as key=value; docs/reference/mixers.md lists them."""
    task_options: tuple[str, ...] = ()
    """Options of the task, as key=value; docs/reference/tasks.md lists them."""
    threads: int = 1
    """Number of threads that torch may use."""
    runs: Path = Path("runs")
    """Directory of all runs; a run has a subdirectory named by its id."""
    resume: bool = True
    """Resume from the checkpoint of the run, if there is one."""
    track: Tracker = "none"
    """Also send metrics to this experiment tracker."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers or tasks."""

    def run(self) -> None:
        for option in ("blocks", "block_size", "threads"):
            if getattr(self, option) is not None:
                check_positive(option, getattr(self, option))
        from statemix.commands.views.train import run_training
        from statemix.runs.plugins import load_files

        load_files(self.files)
        run_training(
            self.run_config(),
            self.runs,
            threads=self.threads,
            resume=self.resume,
            tracker=self.track,
        )

    def run_config(self) -> RunConfig:
        """The config that the options describe: options precede the preset, the preset defaults."""
        self._check_choices()
        given = given_options(self, RunConfig)
        del given["task"], given["task_options"]
        given_model = given_options(self, ModelConfig)
        given_model["options"] = self._mixer_options()
        task_options = read_options(self.task_options, "--task-options")
        config = RunConfig(
            self.task,
            ModelConfig(**given_model),
            task_options=task_options,
            **{name: given[name] for name in ("length", "batch") if name in given},
        )
        if given.get("protocol") == "paper":
            config = paper_sizes(config)
        if self.preset != "none":
            config = _PRESETS[self.preset](config)
        given_model["options"] = {**config.model.options, **given_model["options"]}
        config = replace(config, model=replace(config.model, **given_model), **given)
        return paper_protocol(config) if config.protocol == "paper" else config

    def _mixer_options(self) -> dict[str, Any]:
        """--blocks and --block-size by the names that the mixer has for them, and --options."""
        mixer = getattr(self, "mixer", None) or ModelConfig.mixer
        sizes = dict(zip(SIZES.get(mixer, ()), (self.blocks, self.block_size), strict=False))
        given = {name: value for name, value in sizes.items() if value is not None}
        return given | read_options(self.options, "--options")

    def _check_choices(self) -> None:
        """Reject options that would have no effect."""
        given = given_options(self, RunConfig)
        mixer = getattr(self, "mixer", None) or ModelConfig.mixer
        sizes = [name for name in ("blocks", "block_size") if getattr(self, name) is not None]
        if sizes and mixer not in SIZES:
            raise SystemExit(
                f"statemix: {flags(sizes)} are sizes of {', '.join(SIZES)}; "
                f"give those of {mixer!r} with --options."
            )
        if "matrix_lr" in given and given.get("optimiser") != "muon":
            raise SystemExit(
                "statemix: --matrix-lr is a learning rate of --optimiser muon. "
                "Add that option, or leave this one out."
            )
        if given.get("protocol") == "paper":
            aids = [f.name for f in fields(Aids)]
            refused = [name for name in ("clip", "warmup", *aids, "weight_decay") if name in given]
            refused += ["preset"] * (self.preset != "none")
            refused += ["optimiser"] * (given.get("optimiser") == "muon")
            if refused:
                raise SystemExit(
                    f"statemix: --protocol paper trains without {flags(refused)}. "
                    "Leave one of them out."
                )


Train: Any = make_dataclass(
    "Train",
    [
        *option_fields(ModelConfig, ("options",)),
        *option_fields(
            RunConfig,
            ("task", "model", "task_options", "version"),
            names={"train_examples": "examples"},
            preset=("tracking", tracking_preset(RunConfig("s5"))),
        ),
    ],
    bases=(_TrainOptions,),
    frozen=True,
    namespace={
        "__doc__": """Train a model on a task, and report its accuracy on held-out sequences.

    Tasks: compress, copy, recall, groups such as s5, a5, d6 and z60, parity, even_pairs, cycle_nav,
    mod_arith, mod_arith_brackets, flip_flop, ... `statemix tasks` lists them, and
    docs/reference/tasks.md describes them.

    Examples: `statemix train s3 --block-size 3`, `statemix train parity --block-size 2`,
    `statemix train recall --blocks 64 --optimiser muon --batch 32`,
    `statemix train s3 --mixer lstm --options hidden=64`,
    `statemix train s5 --block-size 5 --examples 100000 --preset tracking`.
    Interrupted runs resume from their last checkpoint.
    """
    },
)
